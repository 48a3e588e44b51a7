/*
 * Lets the sink of the log get nodes in place of rows.
 *
 * A row costs most on its way to Python. So tasks pack their rows here (NodePacker), at a seventh of
 * their size, and Python stages what it gets. All else of a write is as it was: what Python checks
 * when it is planned, and that it stages and publishes. Python knows the write by one more column,
 * which is marked as those of our scans are.
 *
 * A rule, at the end of the optimizer, exchanges the write that Spark made. Where it is not in force,
 * or for columns that NodeColumns leaves to Python, rows go to Python as they are. The same rule tells
 * every sink of ours when names of columns are case-sensitive (SessionsCase).
 */
package headwater;

import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.PartialFunction;
import scala.runtime.AbstractPartialFunction;

public class NodeWrites extends Rule {
  // What a plan shows behind the name of the format.
  private static final String NODES = " (nodes)";

  public TreeNode apply(TreeNode plan) {
    return plan.transformDown((PartialFunction) new Exchange());
  }

  public static class Exchange extends AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      return (node instanceof AppendData || node instanceof WriteToDataSourceV2)
          && exchanged((LogicalPlan) node) != null;
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      LogicalPlan made = isDefinedAt(node) ? exchanged((LogicalPlan) node) : null;
      return made == null ? otherwise.apply(node) : made;
    }

    /** Returns the plan with a write of ours; null when its write is to stay. */
    private static LogicalPlan exchanged(LogicalPlan plan) {
      // Its parts in their order: not every Spark has as many.
      Object[] parts = new Object[plan.productArity()];
      boolean found = false;
      try {
        for (int i = 0; i < parts.length; i++) {
          Object part = plan.productElement(i);
          Object write = part instanceof Option && ((Option) part).isDefined()
              ? ((Option) part).get()
              : part;
          Object ours = ours(write);
          if (ours != null) found = true;
          parts[i] = ours == null ? part : part == write ? ours : Option.apply(ours);
        }
      } catch (IllegalAccessException error) {
        throw new RuntimeException(error);
      }
      return found ? (LogicalPlan) plan.makeCopy(parts) : null;
    }

    private static Object ours(Object write) throws IllegalAccessException {
      if (write instanceof MicroBatchWrite) {
        StreamingWrite ours = streaming(((MicroBatchWrite) write).writeSupport());
        return ours == null ? null : new MicroBatchWrite(Internals.EPOCH.getLong(write), ours);
      }
      if (write == null || write.getClass() != PythonWrite.class) return null;
      String name = (String) Internals.WRITE_NAME.get(write);
      LogicalWriteInfo info = (LogicalWriteInfo) Internals.WRITE_INFO.get(write);
      boolean truncates = Internals.WRITE_TRUNCATES.getBoolean(write);
      NodeColumns columns = columns(name, info, truncates, info.options().containsKey("producer"));
      LogicalWriteInfo told = SessionsCase.told(name, info);
      if (columns == null && told == info) return null;
      PythonDataSourceV2 source = (PythonDataSourceV2) Internals.WRITE_SOURCE.get(write);
      if (columns == null) return new PythonWrite(source, name, told, truncates);
      return new OfBatch(source, name, told, columns);
    }

    private static StreamingWrite streaming(StreamingWrite write) throws IllegalAccessException {
      if (write.getClass() != PythonStreamingWrite.class) return null;
      String name = (String) Internals.STREAMING_NAME.get(write);
      LogicalWriteInfo info = (LogicalWriteInfo) Internals.STREAMING_INFO.get(write);
      boolean truncates = Internals.STREAMING_TRUNCATES.getBoolean(write);
      NodeColumns columns = columns(name, info, truncates, true);
      LogicalWriteInfo told = SessionsCase.told(name, info);
      if (columns == null && told == info) return null;
      PythonDataSourceV2 source = (PythonDataSourceV2) Internals.STREAMING_SOURCE.get(write);
      if (columns == null) return new PythonStreamingWrite(source, name, told, truncates);
      return new OfStream(source, name, told, columns);
    }

    private static NodeColumns columns(
        String name, LogicalWriteInfo info, boolean truncates, boolean repeatable) {
      if (truncates || !ColumnScan.hasNodes(name)) return null;
      return NodeColumns.of(info.schema(), info.options(), repeatable);
    }
  }

  /** A batch write that sends nodes to Python. */
  public static class OfBatch extends PythonWrite {
    private final PythonDataSourceV2 source;
    private final String name;
    private final LogicalWriteInfo info;
    private final NodeColumns columns;

    OfBatch(PythonDataSourceV2 source, String name, LogicalWriteInfo info, NodeColumns columns) {
      super(source, name, info, false);
      this.source = source;
      this.name = name;
      this.info = info;
      this.columns = columns;
    }

    public BatchWrite toBatch() {
      return new PackedBatch(source, name, new Marked(info), columns);
    }

    public String toString() {
      return name + NODES;
    }
  }

  public static class PackedBatch extends PythonBatchWrite {
    private final NodeColumns columns;

    PackedBatch(PythonDataSourceV2 source, String name, Marked info, NodeColumns columns) {
      super(source, name, info, false);
      this.columns = columns;
    }

    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new Tasks((PythonBatchWriterFactory) super.createBatchWriterFactory(info), columns);
    }
  }

  /** The writes of a streaming query that send nodes to Python. */
  public static class OfStream extends PythonStreamingWrite {
    private final String name;
    private final NodeColumns columns;

    OfStream(PythonDataSourceV2 source, String name, LogicalWriteInfo info, NodeColumns columns) {
      super(source, name, new Marked(info), false);
      this.name = name;
      this.columns = columns;
    }

    public String toString() {
      return name + NODES;
    }

    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      return new Tasks((PythonBatchWriterFactory) super.createStreamingWriterFactory(info), columns);
    }
  }

  /** What is to be written, with the mark by which Python knows that it will get nodes. */
  public static class Marked implements LogicalWriteInfo {
    private final LogicalWriteInfo info;

    Marked(LogicalWriteInfo info) {
      this.info = info;
    }

    public CaseInsensitiveStringMap options() {
      return info.options();
    }

    public String queryId() {
      return info.queryId();
    }

    public StructType schema() {
      return ColumnScan.asked("headwater", info.schema());
    }
  }

  /** Makes what writes the rows of a task; goes to executors. */
  public static class Tasks implements DataWriterFactory, StreamingDataWriterFactory {
    private final PythonBatchWriterFactory tasks;
    private final NodeColumns columns;

    Tasks(PythonBatchWriterFactory tasks, NodeColumns columns) {
      this.tasks = tasks;
      this.columns = columns;
    }

    public DataWriter createWriter(int partition, long task) {
      return new NodeWriter(tasks, columns);
    }

    public DataWriter createWriter(int partition, long task, long epoch) {
      return new NodeWriter(tasks, columns);
    }
  }
}
