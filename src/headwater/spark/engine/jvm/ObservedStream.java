/*
 * The stream of a query that reads from us, as it is seen in the progress of the query.
 *
 * It does what the stream within does. Progress shows what is read, instead of the name of a class. Its
 * metrics are how many offsets wait behind the micro-batch, in all and by partition, and how many bytes
 * Python has handed over for it: nodes as they lie in the store, where they are opened by the JVM.
 */
package headwater;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.LongAccumulator;

public class ObservedStream
    implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
  // The name that headwater.spark.log.stream_reader has for it.
  private static final String BEHIND = "behind";
  private static final String METRIC = "offsetsBehind";
  private static final String BYTES = "bytesRead";
  private static final ObjectMapper JSON = new ObjectMapper();

  private final SupportsTriggerAvailableNow stream;
  private final String description;
  private final LongAccumulator bytes = SparkContext.getOrCreate().longAccumulator();
  private volatile Offset seen;
  private long reported;

  ObservedStream(SupportsTriggerAvailableNow stream, CaseInsensitiveStringMap options) {
    this.stream = stream;
    String topic = options.get("topic");
    String name = options.containsKey("stream") ? options.get("stream") : options.get("path");
    description = "headwater " + (topic == null ? "stream '" + name : "topic '" + topic) + "'";
  }

  public String toString() {
    return description;
  }

  public Offset reportLatestOffset() {
    seen = stream.reportLatestOffset();
    return seen;
  }

  /** Returns what counts the bytes of a stream; null for a stream that nobody observes. */
  static LongAccumulator bytesOf(MicroBatchStream stream) {
    return stream instanceof ObservedStream ? ((ObservedStream) stream).bytes : null;
  }

  /** Returns the metrics of the micro-batch that has just ended. */
  public Map metrics(Optional consumed) {
    Map found = new TreeMap();
    long read = bytes.sum();
    found.put(BYTES, String.valueOf(read - reported));
    reported = read;
    Offset latest = seen;
    if (latest == null) return found;
    try {
      JsonNode facts = (JsonNode) JSON.readTree(latest.json());
      found.put(METRIC, at(facts, BEHIND).asText());
      for (Iterator names = facts.fieldNames(); names.hasNext(); ) {
        String name = (String) names.next();
        JsonNode behind = at(at(facts, name), BEHIND);
        if (behind.isNumber()) found.put(METRIC + "." + name, behind.asText());
      }
    } catch (java.io.IOException error) {
      throw new RuntimeException(error);
    }
    return found;
  }

  private static JsonNode at(JsonNode facts, String name) {
    return (JsonNode) facts.path(name);
  }

  public Offset initialOffset() {
    return stream.initialOffset();
  }

  public Offset latestOffset() {
    return ((MicroBatchStream) stream).latestOffset();
  }

  public Offset latestOffset(Offset start, ReadLimit limit) {
    return stream.latestOffset(start, limit);
  }

  public ReadLimit getDefaultReadLimit() {
    return stream.getDefaultReadLimit();
  }

  public void prepareForTriggerAvailableNow() {
    stream.prepareForTriggerAvailableNow();
  }

  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return ((MicroBatchStream) stream).planInputPartitions(start, end);
  }

  public PartitionReaderFactory createReaderFactory() {
    return ((MicroBatchStream) stream).createReaderFactory();
  }

  public Offset deserializeOffset(String json) {
    return stream.deserializeOffset(json);
  }

  public void commit(Offset end) {
    stream.commit(end);
  }

  public void stop() {
    stream.stop();
  }
}
