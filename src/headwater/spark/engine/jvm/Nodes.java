/*
 * Opens nodes of the log, which a task passes on as they lie in the store, after it has checked their
 * checksums.
 *
 * headwater.log.node describes the bytes of a node; a new version of them has to be read here, too.
 * Each row holds one node. Before some of them stands a row that begins with a zero and has two
 * numbers of eight bytes for each: the offset of its first message, and the time of its messages when
 * they have none of their own. Columns that are the same in all rows, or can be counted, are not made
 * at all.
 */
package headwater;

import com.github.luben.zstd.ZstdDecompressCtx;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import net.jpountz.lz4.LZ4Factory;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

public class Nodes {
  // The header, as headwater.log.node writes it: 'H', 'W', then a byte each for the version and the
  // columns, then two numbers of four bytes, rows and the size of the message, then a checksum.
  private static final int MAGIC = 'H' | 'W' << 8;
  private static final int VERSION = 1;
  private static final int VERSION_AT = 2;
  private static final int COLUMNS_AT = 3;
  private static final int ROWS_AT = 4;
  private static final int SIZE_AT = 8;
  private static final int HEADER = 16;
  private static final int HAS_TIME = 1;
  private static final int HAS_OFFSET = 2;
  private static final int ZSTD = 4;
  private static final int LZ4 = 8;
  private static final int HAS_HEADERS = 16;
  // Buffers of a column in Arrow: which values are there, where each begins unless all are of one
  // size, their bytes.
  private static final int TAG = 1;
  private static final int VALUE = 4;
  private static final int FIRST_NUMBERS = 7;

  private final StructType schema;
  private ArrowColumnVector rows;
  private ArrowColumnVector packed;
  private ByteBuffer facts;
  private int at;
  private int count;
  private ZstdDecompressCtx zstd;
  // One for all nodes, so that it stays in the processor's caches: a batch is valid until the next.
  private byte[] opened = new byte[0];

  public Nodes(StructType schema) {
    this.schema = schema;
  }

  /** Begins with the nodes that a batch of a task holds. */
  public void begin(ArrowColumnVector rows, ArrowColumnVector packed, int count) {
    this.rows = rows;
    this.packed = packed;
    this.at = 0;
    this.count = count;
  }

  /** Returns the messages of the next node; null when there is none. */
  public ColumnarBatch next() {
    if (at == count) return null;
    byte[] bytes = packed.getBinary(at);
    if (bytes[0] == 0) {
      facts = numbers(bytes);
      facts.position(1);
      // A setting of Spark may cut batches: the nodes can be in the next one.
      if (++at == count) return null;
      bytes = packed.getBinary(at);
    }
    int row = at++;
    long base = facts.getLong();
    long time = facts.getLong();
    ByteBuffer head = numbers(bytes);
    check(bytes, head);
    int flags = bytes[COLUMNS_AT];
    int length = head.getInt(ROWS_AT);
    boolean used = needs(flags);
    Opened node = used ? new Opened(open(bytes, flags, head.getInt(SIZE_AT))) : null;
    ColumnVector[] vectors = new ColumnVector[schema.length()];
    for (int i = 0; i < vectors.length; i++) {
      StructField field = schema.apply(i);
      String name = field.name();
      DataType type = field.dataType();
      if (name.equals("tag")) {
        vectors[i] = new Bytes(type, node, TAG);
      } else if (name.equals("value")) {
        vectors[i] = new Bytes(type, node, VALUE);
      } else if (name.equals("offset")) {
        int place = FIRST_NUMBERS + ((flags & HAS_TIME) != 0 ? 2 : 0);
        vectors[i] =
            (flags & HAS_OFFSET) != 0
                ? (ColumnVector) new Numbers(type, node, place, 1)
                : new Counted(type, base);
      } else if (name.equals("time")) {
        vectors[i] =
            (flags & HAS_TIME) != 0
                ? (ColumnVector) new Numbers(type, node, FIRST_NUMBERS, 1000)
                : constant(length, type, time * 1000);
      } else if (name.equals("partition")) {
        ConstantColumnVector partition = new ConstantColumnVector(length, type);
        partition.setInt(rows.getChild(i).getInt(row));
        vectors[i] = partition;
      } else {
        ConstantColumnVector stream = new ConstantColumnVector(length, type);
        stream.setUtf8String(rows.getChild(i).getUTF8String(row).clone());
        vectors[i] = stream;
      }
    }
    return new ColumnarBatch(vectors, length);
  }

  /** Returns whether a column of the schema lies in nodes with these flags. */
  private boolean needs(int flags) {
    for (int i = 0; i < schema.length(); i++) {
      String name = schema.apply(i).name();
      if (name.equals("stream") || name.equals("partition")) continue;
      if (name.equals("offset") && (flags & HAS_OFFSET) == 0) continue;
      if (name.equals("time") && (flags & HAS_TIME) == 0) continue;
      return true;
    }
    return false;
  }

  public void close() {
    if (zstd != null) zstd.close();
    zstd = null;
  }

  /** Refuses what is not a node of our version; the task has checked that its bytes are whole. */
  private static void check(byte[] bytes, ByteBuffer head) {
    if (bytes.length < HEADER || head.getShort(0) != MAGIC) {
      throw unreadable("it does not begin as a node does");
    }
    if (bytes[VERSION_AT] != VERSION) {
      int found = bytes[VERSION_AT] & 0xff;
      throw unreadable("it has format version " + found + ", this client reads up to " + VERSION);
    }
    if ((bytes[COLUMNS_AT] & ~(HAS_TIME | HAS_OFFSET | ZSTD | LZ4 | HAS_HEADERS)) != 0) {
      int found = bytes[COLUMNS_AT] & 0xff;
      throw unreadable("it has columns that this client does not know (" + found + ")");
    }
  }

  /** Returns what Python finds to be its UnreadableNode, by name and words. */
  private static RuntimeException unreadable(String why) {
    return new IllegalStateException(
        "headwater.errors.UnreadableNode: a stored node cannot be read: "
            + why
            + "; upgrade the headwater package, or, when the version is right, restore the stream"
            + " from a backup");
  }

  /** Returns the message of a node, an Arrow record batch, behind some bytes to skip. */
  private ByteBuffer open(byte[] bytes, int flags, int size) {
    int start = HEADER;
    int length = bytes.length - start;
    byte[] message = bytes;
    if ((flags & (ZSTD | LZ4)) != 0) {
      if (opened.length < size) opened = new byte[size + size / 4];
      message = opened;
      int found;
      if ((flags & LZ4) != 0) {
        found =
            LZ4Factory.fastestInstance()
                .safeDecompressor()
                .decompress(bytes, start, length, message, 0, size);
      } else {
        if (zstd == null) zstd = new ZstdDecompressCtx();
        found = zstd.decompressByteArray(message, 0, size, bytes, start, length);
      }
      if (found != size) throw unreadable("it is shorter than its header says");
      start = 0;
    }
    ByteBuffer found = numbers(message);
    found.position(start);
    return found;
  }

  private static ByteBuffer numbers(byte[] bytes) {
    return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
  }

  private static ColumnVector constant(int length, DataType type, long value) {
    ConstantColumnVector vector = new ConstantColumnVector(length, type);
    vector.setLong(value);
    return vector;
  }

  /** The buffers of an Arrow record batch, found in an encapsulated message. */
  public static class Opened {
    final byte[] bytes;
    private final RecordBatch batch;
    private final int body;

    Opened(ByteBuffer message) {
      bytes = message.array();
      int start = message.position();
      // Four bytes that mark the beginning, four with the size of the batch's description.
      body = start + 8 + message.getInt(start + 4);
      message.position(start + 8);
      batch = (RecordBatch) Message.getRootAsMessage(message).header(new RecordBatch());
    }

    int begin(int buffer) {
      return body + (int) batch.buffers(buffer).offset();
    }

    int number(int place) {
      return Platform.getInt(bytes, Platform.BYTE_ARRAY_OFFSET + place);
    }
  }

  /** Strings, or values that are bytes. */
  public static class Bytes extends FullColumn {
    private final Opened node;
    private final int starts;
    private final int data;

    Bytes(DataType type, Opened node, int buffer) {
      super(type);
      this.node = node;
      this.starts = node.begin(buffer);
      this.data = node.begin(buffer + 1);
    }

    public UTF8String getUTF8String(int row) {
      int place = starts + 4 * row;
      int first = node.number(place);
      return UTF8String.fromBytes(node.bytes, data + first, node.number(place + 4) - first);
    }

    public byte[] getBinary(int row) {
      int place = starts + 4 * row;
      int first = node.number(place);
      byte[] value = new byte[node.number(place + 4) - first];
      System.arraycopy(node.bytes, data + first, value, 0, value.length);
      return value;
    }
  }

  /** Numbers of eight bytes, in another unit. */
  public static class Numbers extends FullColumn {
    private final byte[] bytes;
    private final long place;
    private final long factor;

    Numbers(DataType type, Opened node, int buffer, long factor) {
      super(type);
      this.bytes = node.bytes;
      this.place = Platform.BYTE_ARRAY_OFFSET + node.begin(buffer);
      this.factor = factor;
    }

    public long getLong(int row) {
      return Platform.getLong(bytes, place + 8L * row) * factor;
    }
  }

  /** Numbers that follow one upon the other. */
  public static class Counted extends FullColumn {
    private final long first;

    Counted(DataType type, long first) {
      super(type);
      this.first = first;
    }

    public long getLong(int row) {
      return first + row;
    }
  }
}
