/*
 * Returns the rows of a task that needs no Python: offsets without a gap, of one stream.
 *
 * headwater.spark.log.range_reader makes such tasks, where a query uses nothing that lies in
 * messages. They are recognised by a mark in their pickle.
 */
package headwater;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

public class CountedReader implements PartitionReader {
  private static final byte EDGE = (byte) 0xff;
  private static final byte[] MARK = mark("headwater:counted");
  private static final int ROWS = 1 << 20;

  private final StructType schema;
  private final long stop;
  private final int partition;
  private final UTF8String stream;
  private long next;
  private ColumnarBatch current;

  private CountedReader(StructType schema, ByteBuffer facts) {
    this.schema = schema;
    next = facts.getLong();
    stop = facts.getLong();
    partition = facts.getInt();
    byte[] name = new byte[facts.getInt()];
    facts.get(name);
    stream = UTF8String.fromBytes(name);
  }

  /** Returns the reader of a task; null for one that Python has to run. */
  static CountedReader of(StructType schema, byte[] pickled) {
    int at = behind(MARK, pickled);
    if (at < 0) return null;
    ByteBuffer facts = ByteBuffer.wrap(pickled).order(ByteOrder.LITTLE_ENDIAN);
    facts.position(at);
    return new CountedReader(schema, facts);
  }

  /** Returns the bytes by which a kind of task is known; no text has them. */
  static byte[] mark(String kind) {
    byte[] mark = ("?" + kind + "?").getBytes();
    mark[0] = EDGE;
    mark[mark.length - 1] = EDGE;
    return mark;
  }

  /** Returns the place behind the first mark in a pickled task; -1 when there is none. */
  static int behind(byte[] mark, byte[] pickled) {
    for (int at = 0; at + mark.length <= pickled.length; at++) {
      int same = 0;
      while (same < mark.length && pickled[at + same] == mark[same]) same++;
      if (same == mark.length) return at + same;
    }
    return -1;
  }

  public boolean next() {
    if (next >= stop) return false;
    int rows = (int) Math.min(ROWS, stop - next);
    ColumnVector[] vectors = new ColumnVector[schema.length()];
    for (int i = 0; i < vectors.length; i++) vectors[i] = column(i, rows);
    current = new ColumnarBatch(vectors, rows);
    next += rows;
    return true;
  }

  private ColumnVector column(int place, int rows) {
    String name = schema.apply(place).name();
    DataType type = schema.apply(place).dataType();
    if (name.equals("offset")) return new Nodes.Counted(type, next);
    ConstantColumnVector same = new ConstantColumnVector(rows, type);
    if (name.equals("partition")) {
      same.setInt(partition);
    } else {
      same.setUtf8String(stream);
    }
    return same;
  }

  public Object get() {
    return current;
  }

  public void close() {}
}
