/*
 * Runs a task of a Python source and passes its Arrow batches on as columns.
 *
 * Spark runs the task; only the step behind it, in which it makes rows of columns, is left out. That
 * step and what runs the task are one method of Spark's, so its parts are taken by reflection.
 */
package headwater;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.Iterator$;
import scala.collection.immutable.Map;
import scala.runtime.AbstractFunction1;

public class ColumnReaders implements PartitionReaderFactory {
  private static final String RUNNER =
      "org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory"
          + "$MapInBatchEvaluator$$anon$1";

  private final PythonPartitionReaderFactory tasks;
  private final StructType schema;
  private final boolean nodes;

  /** ``schema`` is what Spark gets; ``nodes`` says that tasks have a column more, for nodes. */
  public ColumnReaders(PythonPartitionReaderFactory tasks, StructType schema, boolean nodes) {
    this.tasks = tasks;
    this.schema = schema;
    this.nodes = nodes;
  }

  /** Gives the first part that is needed here and that this Spark does not have; null without. */
  public static String lacking() {
    try {
      field("source");
      field("pickledReadFunc");
      field("outputSchema");
      field("jobArtifactUUID");
      field("sessionUUID");
      runner();
      return null;
    } catch (Exception error) {
      return error.toString();
    }
  }

  public PartitionReader createReader(InputPartition partition) {
    return tasks.createReader(partition);
  }

  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  public PartitionReader createColumnarReader(InputPartition partition) {
    try {
      return new Reader(this, (PythonInputPartition) partition);
    } catch (RuntimeException error) {
      throw error;
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
  }

  private static Field field(String name) throws Exception {
    Class holder = PythonPartitionReaderFactory.class;
    // The way Scala names what an inner class uses.
    String prefix = holder.getName().replace('.', '$') + "$$";
    Field field = holder.getDeclaredField(prefix + name);
    field.setAccessible(true);
    return field;
  }

  Object get(String name) throws Exception {
    return field(name).get(tasks);
  }

  static Constructor runner() throws Exception {
    Class evaluator = Class.forName(RUNNER.substring(0, RUNNER.indexOf("$$anon")));
    Constructor found =
        Class.forName(RUNNER).getDeclaredConstructor(new Class[] {evaluator, int[][].class});
    found.setAccessible(true);
    return found;
  }

  /** Gives the batches of one task. */
  public static class Reader implements PartitionReader {
    private final StructType schema;
    private final boolean packs;
    private final UserDefinedPythonDataSource source;
    private final Map metrics = PythonCustomMetric$.MODULE$.pythonMetrics();
    private final Iterator batches;
    private final Nodes nodes;
    private ColumnarBatch current;

    Reader(ColumnReaders readers, PythonInputPartition partition) throws Exception {
      schema = readers.schema;
      packs = readers.nodes;
      nodes = new Nodes(schema);
      source = (UserDefinedPythonDataSource) readers.get("source");
      MapInBatchEvaluatorFactory evaluators =
          source.createMapInBatchEvaluatorFactory(
              (byte[]) readers.get("pickledReadFunc"),
              "read_from_data_source",
              UserDefinedPythonDataSource.readInputSchema(),
              (StructType) readers.get("outputSchema"),
              metrics,
              (Option) readers.get("jobArtifactUUID"),
              (Option) readers.get("sessionUUID"));
      Object[] parts = new Object[] {evaluators.createEvaluator(), new int[][] {new int[] {0}}};
      ArrowPythonRunner runner = (ArrowPythonRunner) runner().newInstance(parts);
      // One batch with one row: a column with the partition, in a struct.
      Object row = row(row(partition.pickedPartition()));
      Iterator input = Iterator$.MODULE$.single(Iterator$.MODULE$.single(row));
      TaskContext context = TaskContext.get();
      batches = runner.compute(input, context.partitionId(), context);
    }

    public boolean next() {
      current = nodes.next();
      while (current == null && batches.hasNext()) {
        current = take((ColumnarBatch) batches.next());
      }
      return current != null;
    }

    private ColumnarBatch take(ColumnarBatch batch) {
      ArrowColumnVector rows = (ArrowColumnVector) batch.column(0);
      int columns = schema.length();
      if (packs && batch.numRows() > 0 && !rows.getChild(columns).isNullAt(0)) {
        nodes.begin(rows, rows.getChild(columns), batch.numRows());
        return nodes.next();
      }
      ColumnVector[] vectors = new ColumnVector[columns];
      for (int i = 0; i < columns; i++) vectors[i] = rows.getChild(i);
      return new ColumnarBatch(vectors, batch.numRows());
    }

    public Object get() {
      return current;
    }

    public void close() {
      nodes.close();
    }

    public CustomTaskMetric[] currentMetricsValues() {
      return source.createPythonTaskMetrics((Map) metrics.map(new Value()));
    }
  }

  static GenericInternalRow row(Object value) {
    return new GenericInternalRow(new Object[] {value});
  }

  public static class Value extends AbstractFunction1 {
    public Object apply(Object entry) {
      Tuple2 pair = (Tuple2) entry;
      return new Tuple2(pair._1(), ((AccumulatorV2) pair._2()).value());
    }
  }
}
