/*
 * Runs a task of a Python source and passes its Arrow batches on as columns.
 *
 * Spark runs the task; only the step behind it, in which it makes rows of columns, is left out. That
 * step and what runs the task are one method of Spark's, so its parts are taken out of Internals.
 */
package headwater;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.LongAccumulator;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.Iterator$;
import scala.collection.immutable.Map;
import scala.runtime.AbstractFunction1;

public class ColumnReaders implements PartitionReaderFactory {
  private final PythonPartitionReaderFactory tasks;
  private final StructType schema;
  private final boolean nodes;
  private final LongAccumulator bytes;

  /**
   * ``schema`` is what Spark gets; with ``nodes``, tasks have one column more, for nodes.
   *
   * @param bytes counts what Python hands over; null where nobody asks for it
   */
  public ColumnReaders(
      PythonPartitionReaderFactory tasks, StructType schema, boolean nodes, LongAccumulator bytes) {
    this.tasks = tasks;
    this.schema = schema;
    this.nodes = nodes;
    this.bytes = bytes;
  }

  public PartitionReader createReader(InputPartition partition) {
    return tasks.createReader(partition);
  }

  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  public PartitionReader createColumnarReader(InputPartition partition) {
    try {
      byte[] pickled = pickled(partition);
      // First: what a task holds are messages, in which there may be any bytes.
      HeldReader held = nodes ? HeldReader.of(schema, pickled, bytes) : null;
      if (held != null) return held;
      CountedReader counted = nodes ? CountedReader.of(schema, pickled) : null;
      return counted != null ? (PartitionReader) counted : new Reader(this, pickled);
    } catch (RuntimeException error) {
      throw error;
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
  }

  /** Returns the batches of one task, one after the other. */
  public static class Reader implements PartitionReader {
    // Spark's name for the bytes that it got from Python.
    private static final String RECEIVED = "pythonDataReceived";

    private final StructType schema;
    private final boolean packs;
    private final UserDefinedPythonDataSource source;
    private final Map metrics = PythonCustomMetric$.MODULE$.pythonMetrics();
    private final Iterator batches;
    private final Nodes nodes;
    private final LongAccumulator bytes;
    private ColumnarBatch current;

    Reader(ColumnReaders readers, byte[] partition) throws Exception {
      schema = readers.schema;
      packs = readers.nodes;
      bytes = readers.bytes;
      nodes = new Nodes(schema);
      Object tasks = readers.tasks;
      source = (UserDefinedPythonDataSource) Internals.TASK_SOURCE.get(tasks);
      MapInBatchEvaluatorFactory evaluators =
          source.createMapInBatchEvaluatorFactory(
              (byte[]) Internals.TASK_FUNCTION.get(tasks),
              "read_from_data_source",
              UserDefinedPythonDataSource.readInputSchema(),
              (StructType) Internals.TASK_SCHEMA.get(tasks),
              metrics,
              (Option) Internals.TASK_ARTIFACTS.get(tasks),
              (Option) Internals.TASK_SESSION.get(tasks));
      Object[] parts = new Object[] {evaluators.createEvaluator(), new int[][] {new int[] {0}}};
      ArrowPythonRunner runner = (ArrowPythonRunner) Internals.TASK_RUNNER.newInstance(parts);
      // One batch with one row: a column with the partition, in a struct.
      Object row = row(row(partition));
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
      if (bytes != null) bytes.add(((AccumulatorV2) metrics.apply(RECEIVED)).value());
    }

    public CustomTaskMetric[] currentMetricsValues() {
      return source.createPythonTaskMetrics((Map) metrics.map(new Value()));
    }
  }

  /** Returns what Python planned for a task, in a batch read or in a micro-batch. */
  static byte[] pickled(InputPartition partition) {
    return partition instanceof PythonStreamingInputPartition
        ? ((PythonStreamingInputPartition) partition).pickedPartition()
        : ((PythonInputPartition) partition).pickedPartition();
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
