/*
 * Returns the rows of a task that Python read when it planned the micro-batch.
 *
 * headwater.spark.log.stream_reader makes such tasks of small micro-batches. They are recognised by a mark
 * in their pickle, and hold a stream of Arrow batches with all columns of the source behind it.
 */
package headwater;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.LongAccumulator;

public class HeldReader implements PartitionReader {
  private static final byte[] MARK = CountedReader.mark("headwater:held");

  private final StructType schema;
  private final BufferAllocator memory;
  private final ArrowStreamReader rows;
  private ColumnarBatch current;

  private HeldReader(StructType schema, byte[] pickled, int at) {
    this.schema = schema;
    memory = ArrowUtils.rootAllocator().newChildAllocator("headwater", 0, Long.MAX_VALUE);
    rows =
        new ArrowStreamReader(new ByteArrayInputStream(pickled, at, pickled.length - at), memory);
  }

  /** Returns the reader of a task; null for one that does not hold its rows. */
  static HeldReader of(StructType schema, byte[] pickled, LongAccumulator bytes) {
    int at = CountedReader.behind(MARK, pickled);
    if (at < 0) return null;
    if (bytes != null) bytes.add(pickled.length - at);
    return new HeldReader(schema, pickled, at);
  }

  public boolean next() throws IOException {
    if (!rows.loadNextBatch()) return false;
    VectorSchemaRoot batch = rows.getVectorSchemaRoot();
    ColumnVector[] vectors = new ColumnVector[schema.length()];
    for (int i = 0; i < vectors.length; i++) {
      vectors[i] = new ArrowColumnVector(batch.getVector(schema.apply(i).name()));
    }
    current = new ColumnarBatch(vectors, batch.getRowCount());
    return true;
  }

  public Object get() {
    return current;
  }

  public void close() throws IOException {
    rows.close();
    memory.close();
  }
}
