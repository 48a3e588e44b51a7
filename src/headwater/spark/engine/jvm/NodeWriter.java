/*
 * Writes the rows of a task: packs them as nodes and sends these to Python, which stages them.
 *
 * Some nodes are one batch, which Python stages by one call, while the next ones are packed here.
 */
package headwater;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.Map;
import scala.jdk.javaapi.CollectionConverters;

public class NodeWriter implements DataWriter {
  private static final int BATCH_NODES = 16;
  private static final int BATCH_BYTES = 8 << 20;

  private final PythonBatchWriterFactory tasks;
  private final NodeColumns columns;
  private final Map metrics = PythonCustomMetric$.MODULE$.pythonMetrics();
  private byte[] staged;
  private NodePacker packer;

  NodeWriter(PythonBatchWriterFactory tasks, NodeColumns columns) {
    this.tasks = tasks;
    this.columns = columns;
  }

  public void writeAll(Iterator rows) {
    packer = new NodePacker(rows, columns);
    MapInBatchEvaluatorFactory evaluators =
        tasks
            .source()
            .createMapInBatchEvaluatorFactory(
                tasks.pickledWriteFunc(),
                "write_to_data_source",
                columns.sent(),
                UserDefinedPythonDataSource.writeOutputSchema(),
                metrics,
                tasks.jobArtifactUUID(),
                tasks.sessionUUID());
    Object[] parts = new Object[] {evaluators.createEvaluator(), new int[][] {new int[] {0}}};
    ArrowPythonRunner runner;
    try {
      runner = (ArrowPythonRunner) Internals.TASK_RUNNER.newInstance(parts);
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
    TaskContext context = TaskContext.get();
    Iterator batches = new Batches(packer, columns);
    scala.collection.Iterator input = CollectionConverters.asScala(batches);
    scala.collection.Iterator replies = runner.compute(input, context.partitionId(), context);
    while (replies.hasNext()) {
      ColumnarBatch reply = (ColumnarBatch) replies.next();
      if (reply.numRows() == 0) continue;
      staged = ((ArrowColumnVector) reply.column(0)).getChild(0).getBinary(0);
    }
    if (staged == null) throw new IllegalStateException("a task did not report what it has staged");
  }

  public void write(Object row) {
    throw new UnsupportedOperationException("rows are written all at once");
  }

  public WriterCommitMessage commit() {
    return new PythonWriterCommitMessage(staged);
  }

  public void abort() {}

  public void close() {
    if (packer != null) packer.close();
    packer = null;
  }

  public CustomTaskMetric[] currentMetricsValues() {
    return tasks.source().createPythonTaskMetrics((Map) metrics.map(new ColumnReaders.Value()));
  }

  /** What is sent to Python, batch by batch; none of them is empty. */
  public static class Batches implements Iterator {
    private final NodePacker packer;
    private final NodeColumns columns;
    // Nodes that are being packed, in their order, and the bytes of their messages.
    private final ArrayDeque ahead = new ArrayDeque();
    private int bytes;

    Batches(NodePacker packer, NodeColumns columns) {
      this.packer = packer;
      this.columns = columns;
    }

    /** Sees to it that the next batch is being packed, and the one behind it. */
    public boolean hasNext() {
      while (ahead.size() < 2 * BATCH_NODES && bytes < 2 * BATCH_BYTES) {
        NodePacker.Packed next = packer.next();
        if (next == null) break;
        ahead.add(next);
        bytes += next.size;
        // It ends the write.
        if (!next.isNode()) break;
      }
      return !ahead.isEmpty();
    }

    public Object next() {
      List batch = new ArrayList();
      int sent = 0;
      while (batch.size() < BATCH_NODES && sent < BATCH_BYTES && !ahead.isEmpty()) {
        NodePacker.Packed next = (NodePacker.Packed) ahead.poll();
        bytes -= next.size;
        sent += next.size;
        batch.add(ColumnReaders.row(next.row(columns)));
      }
      return CollectionConverters.asScala(batch.iterator());
    }

    public void remove() {
      throw new UnsupportedOperationException();
    }
  }
}
