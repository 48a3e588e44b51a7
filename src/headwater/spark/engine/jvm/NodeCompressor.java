/*
 * Makes nodes of Arrow messages in a thread of its own: compresses them and adds their headers.
 *
 * That is half of the work of a task that writes. The task collects the next rows meanwhile, as it did
 * when the other half was done by its Python process.
 */
package headwater;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdCompressCtx;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Queue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadFactory;
import java.util.zip.CRC32;

public class NodeCompressor {
  // As headwater.log.node has them.
  private static final int HEADER = 16;
  private static final int CHECKED = 12;
  private static final byte VERSION = 1;
  private static final int ZSTD = 4;
  private static final int COMPRESS_FROM = 1024;
  private static final int LEVEL = 2;

  private final ExecutorService thread = Executors.newSingleThreadExecutor(new Daemons());
  // Arrays of messages that were compressed, to be used again.
  private final Queue spare = new ConcurrentLinkedQueue();
  // Used by the thread only.
  private final ZstdCompressCtx zstd = new ZstdCompressCtx().setLevel(LEVEL);
  private final CRC32 crc = new CRC32();
  private byte[] packed = new byte[0];

  /** Returns an array for a message of so many bytes. */
  byte[] array(int size) {
    byte[] found = (byte[]) spare.poll();
    return found != null && found.length >= size ? found : new byte[size + size / 4];
  }

  /** Begins with the node of a message, which is in an array that ``array`` returned. */
  Future pack(byte[] message, int size, int rows, int columns) {
    return thread.submit(new Packing(this, message, size, rows, columns));
  }

  /** Ends the thread, behind what it was given. */
  void close() {
    thread.submit(new Closing(zstd));
    thread.shutdown();
  }

  private byte[] node(byte[] message, int size, int rows, int columns) {
    int flags = columns;
    byte[] node;
    if (size >= COMPRESS_FROM) {
      flags |= ZSTD;
      int most = HEADER + (int) Zstd.compressBound(size);
      if (packed.length < most) packed = new byte[most];
      int found = zstd.compressByteArray(packed, HEADER, most - HEADER, message, 0, size);
      node = Arrays.copyOf(packed, HEADER + found);
    } else {
      node = new byte[HEADER + size];
      System.arraycopy(message, 0, node, HEADER, size);
    }
    spare.add(message);
    ByteBuffer head = ByteBuffer.wrap(node).order(ByteOrder.LITTLE_ENDIAN);
    head.put((byte) 'H').put((byte) 'W').put(VERSION).put((byte) flags).putInt(rows).putInt(size);
    crc.reset();
    crc.update(node, 0, CHECKED);
    crc.update(node, HEADER, node.length - HEADER);
    head.putInt((int) crc.getValue());
    return node;
  }

  public static class Packing implements Callable {
    private final NodeCompressor compressor;
    private final byte[] message;
    private final int size;
    private final int rows;
    private final int columns;

    Packing(NodeCompressor compressor, byte[] message, int size, int rows, int columns) {
      this.compressor = compressor;
      this.message = message;
      this.size = size;
      this.rows = rows;
      this.columns = columns;
    }

    public Object call() {
      return compressor.node(message, size, rows, columns);
    }
  }

  public static class Closing implements Runnable {
    private final ZstdCompressCtx zstd;

    Closing(ZstdCompressCtx zstd) {
      this.zstd = zstd;
    }

    public void run() {
      zstd.close();
    }
  }

  public static class Daemons implements ThreadFactory {
    public Thread newThread(Runnable work) {
      Thread made = new Thread(work, "headwater: packs nodes");
      made.setDaemon(true);
      return made;
    }
  }
}
