/*
 * Packs rows as nodes of the log, as headwater.log.node does it in Python.
 *
 * A node is a header and an Arrow record batch as an encapsulated message, compressed by zstd when
 * that pays (NodeCompressor). Rows of one node are kept back, so that the last one is not small. A row that the log
 * does not take is passed on as it is, between nodes: Python finds what is wrong with it, and its
 * error is the one of every other session.
 */
package headwater;

import com.google.flatbuffers.FlatBufferBuilder;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Iterator;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.MetadataVersion;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

public class NodePacker {
  // As headwater.log.keys has them.
  private static final int NODE_MESSAGES = 1000;
  private static final int NODE_BYTES = 1 << 20;
  private static final int MAX_TAG_BYTES = 4096;
  private static final int MAX_VALUE_BYTES = 16 << 20;
  private static final long MAX_TIME_MS = (1L << 53) - 1;
  // What is collected before a node is made of the first rows: the rest is at least half a node.
  private static final int COLLECTED = NODE_MESSAGES + NODE_MESSAGES / 2;
  // As headwater.log.node has it.
  private static final int HAS_TIME = 1;
  // As headwater.spark.engine.writes has it, and its second and third power.
  private static final long K = 0x9E3779B97F4A7C15L;
  private static final long K2 = K * K;
  private static final long K3 = K2 * K;

  private static final UTF8String NO_TAG = UTF8String.fromBytes(new byte[0]);

  private final Iterator rows;
  private final NodeColumns columns;
  private final Strings tags = new Strings(COLLECTED);
  private final Strings values = new Strings(COLLECTED);
  private final long[] times = new long[COLLECTED];
  private final NodeCompressor compressor = new NodeCompressor();
  private final CRC32 crc = new CRC32();
  private int count;
  private InternalRow row;

  NodePacker(Iterator rows, NodeColumns columns) {
    this.rows = rows;
    this.columns = columns;
  }

  /** Returns the next node, or the next row that is not taken; null behind the last one. */
  Packed next() {
    while (row != null || rows.hasNext()) {
      // It stays until it is collected: what was collected before it may have to go first.
      if (row == null) row = (InternalRow) rows.next();
      UTF8String tag = columns.tag < 0 ? NO_TAG : bytes(row, columns.tag, true);
      UTF8String value = bytes(row, columns.value, columns.valueIsString);
      boolean timed = columns.time >= 0 && !row.isNullAt(columns.time);
      long time = timed ? row.getLong(columns.time) / 1000 : 0;
      boolean taken = isTaken(tag, value, timed, time);
      if (count > 0 && (!taken || isFull(tag, value))) return pack(Math.min(count, NODE_MESSAGES));
      InternalRow given = row;
      row = null;
      if (!taken) return new Packed(null, 0, 0, 0, 0, columns.passedOn(given, tag, value));
      tags.add(tag);
      values.add(value);
      times[count++] = time;
      if (count == COLLECTED) return pack(NODE_MESSAGES);
    }
    if (count == 0) return null;
    return pack(count <= NODE_MESSAGES ? count : (count + 1) / 2);
  }

  void close() {
    compressor.close();
  }

  private boolean isTaken(UTF8String tag, UTF8String value, boolean timed, long time) {
    return tag != null
        && value != null
        && tag.numBytes() <= MAX_TAG_BYTES
        && tag.isValid()
        && value.numBytes() <= MAX_VALUE_BYTES
        && (columns.time < 0 || (timed && time >= 0 && time <= MAX_TIME_MS));
  }

  private boolean isFull(UTF8String tag, UTF8String value) {
    return tags.size() + values.size() + tag.numBytes() + value.numBytes() > NODE_BYTES;
  }

  /** Returns a text or bytes without a copy where that can be; null when there is none. */
  private static UTF8String bytes(InternalRow row, int column, boolean isString) {
    if (row.isNullAt(column)) return null;
    // Both lie in such a row in the same way.
    if (isString || row instanceof UnsafeRow) return row.getUTF8String(column);
    return UTF8String.fromBytes(row.getBinary(column));
  }

  /** Begins with a node of the first rows that are collected, and forgets them. */
  private Packed pack(int rows) {
    boolean timed = columns.time >= 0;
    // Buffers of a column: which values are there, where each begins unless all are of one size,
    // their bytes. All values are there, which an empty buffer says.
    int starts = 4 * (rows + 1);
    int[] lengths =
        timed
            ? new int[] {0, starts, tags.end(rows), 0, starts, values.end(rows), 0, 8 * rows}
            : new int[] {0, starts, tags.end(rows), 0, starts, values.end(rows)};
    int[] offsets = new int[lengths.length + 1];
    for (int i = 0; i < lengths.length; i++) offsets[i + 1] = offsets[i] + (lengths[i] + 7) / 8 * 8;
    byte[] description = description(rows, lengths, offsets);
    int described = (description.length + 7) / 8 * 8;
    int body = 8 + described;
    int size = body + offsets[lengths.length];
    byte[] message = compressor.array(size);
    // What lies behind the description and behind each buffer is zero.
    Arrays.fill(message, 8 + description.length, body, (byte) 0);
    for (int i = 0; i < lengths.length; i++) {
      Arrays.fill(message, body + offsets[i] + lengths[i], body + offsets[i + 1], (byte) 0);
    }
    ByteBuffer.wrap(message).order(ByteOrder.LITTLE_ENDIAN).putInt(-1).putInt(described);
    System.arraycopy(description, 0, message, 8, description.length);
    tags.write(message, body + offsets[1], body + offsets[2], rows);
    values.write(message, body + offsets[4], body + offsets[5], rows);
    if (timed) {
      long place = Platform.BYTE_ARRAY_OFFSET + body + offsets[7];
      Platform.copyMemory(times, Platform.LONG_ARRAY_OFFSET, message, place, 8L * rows);
    }
    Future node = compressor.pack(message, size, rows, timed ? HAS_TIME : 0);
    long newest = times[0];
    for (int i = 1; i < rows; i++) newest = Math.max(newest, times[i]);
    Packed made = new Packed(node, size, times[0], newest, columns.summed ? sum(rows) : 0, null);
    tags.drop(rows, count);
    values.drop(rows, count);
    System.arraycopy(times, rows, times, 0, count - rows);
    count -= rows;
    return made;
  }

  /** Returns the sum of the checksums of rows, as headwater.spark.engine.writes makes them. */
  private long sum(int rows) {
    long sum = 0;
    for (int i = 0; i < rows; i++) {
      crc.reset();
      tags.check(crc, i);
      values.check(crc, i);
      long row = crc.getValue() + tags.length(i) * K + values.length(i) * K2 + times[i] * K3;
      row = (row ^ (row >>> 30)) * 0xBF58476D1CE4E5B9L;
      row = (row ^ (row >>> 27)) * 0x94D049BB133111EBL;
      sum += row ^ (row >>> 31);
    }
    return sum;
  }

  private static byte[] description(int rows, int[] lengths, int[] offsets) {
    FlatBufferBuilder made = new FlatBufferBuilder(512);
    int columns = lengths.length == 8 ? 3 : 2;
    RecordBatch.startNodesVector(made, columns);
    for (int i = 0; i < columns; i++) FieldNode.createFieldNode(made, rows, 0);
    int nodes = made.endVector();
    RecordBatch.startBuffersVector(made, lengths.length);
    for (int i = lengths.length - 1; i >= 0; i--) Buffer.createBuffer(made, offsets[i], lengths[i]);
    int buffers = made.endVector();
    RecordBatch.startRecordBatch(made);
    RecordBatch.addLength(made, rows);
    RecordBatch.addNodes(made, nodes);
    RecordBatch.addBuffers(made, buffers);
    int batch = RecordBatch.endRecordBatch(made);
    Message.startMessage(made);
    Message.addVersion(made, MetadataVersion.V5);
    Message.addHeaderType(made, MessageHeader.RecordBatch);
    Message.addHeader(made, batch);
    Message.addBodyLength(made, offsets[lengths.length]);
    made.finish(Message.endMessage(made));
    return made.sizedByteArray();
  }

  /** A node on its way, or a row that is passed on. */
  public static class Packed {
    /** The bytes of the message before they are compressed. */
    final int size;

    private final Future node;
    private final long first;
    private final long newest;
    private final long sum;
    private final GenericInternalRow passedOn;

    Packed(
        Future node, int size, long first, long newest, long sum, GenericInternalRow passedOn) {
      this.node = node;
      this.size = size;
      this.first = first;
      this.newest = newest;
      this.sum = sum;
      this.passedOn = passedOn;
    }

    boolean isNode() {
      return passedOn == null;
    }

    /** Returns what is sent to Python; waits for it. */
    GenericInternalRow row(NodeColumns columns) {
      if (passedOn != null) return passedOn;
      try {
        return columns.node((byte[]) node.get(), first, newest, sum);
      } catch (Exception error) {
        throw new RuntimeException(error);
      }
    }
  }

  /** A column of texts or bytes: all of them in a row, and where each ends. */
  private static class Strings {
    private final int[] ends;
    private byte[] bytes = new byte[1 << 16];
    private int count;

    Strings(int most) {
      ends = new int[most + 1];
    }

    int size() {
      return ends[count];
    }

    int end(int rows) {
      return ends[rows];
    }

    int length(int row) {
      return ends[row + 1] - ends[row];
    }

    void check(CRC32 crc, int row) {
      crc.update(bytes, ends[row], length(row));
    }

    void add(UTF8String one) {
      int start = ends[count];
      int end = start + one.numBytes();
      if (end > bytes.length) bytes = Arrays.copyOf(bytes, end + end / 2);
      one.writeToMemory(bytes, Platform.BYTE_ARRAY_OFFSET + start);
      ends[++count] = end;
    }

    /** Writes where each of the first values begins and the last one ends, and their bytes. */
    void write(byte[] target, int starts, int data, int rows) {
      Platform.copyMemory(
          ends,
          Platform.INT_ARRAY_OFFSET,
          target,
          Platform.BYTE_ARRAY_OFFSET + starts,
          4L * (rows + 1));
      System.arraycopy(bytes, 0, target, data, ends[rows]);
    }

    /** Forgets the first values. */
    void drop(int rows, int all) {
      int gone = ends[rows];
      System.arraycopy(bytes, gone, bytes, 0, ends[all] - gone);
      for (int i = rows; i <= all; i++) ends[i - rows] = ends[i] - gone;
      count = all - rows;
    }
  }
}
