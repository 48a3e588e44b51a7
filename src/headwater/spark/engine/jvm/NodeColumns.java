/*
 * Which columns of a write are packed as nodes here, and what is sent to Python in their place.
 *
 * headwater.spark.log.staging takes it: a node with the first and the newest of its times and the
 * sum of the checksums of its messages, or a row as it came, where the log does not take it. Columns that need more than that (headers, values
 * that are made of columns, partitions of topics) are left to Python.
 */
package headwater;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BinaryType$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.types.TimestampType$;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

public class NodeColumns implements Serializable {
  private static final String[] LEFT_TO_PYTHON = {"topic", "schema", "columnNameOfCorruptRecord"};
  // Python's Arrow does not read a column without a byte that was compressed by lz4 in Java, and of the
  // columns beside the nodes all have none.
  private static final String CODEC = "spark.sql.execution.arrow.compression.codec";
  // Where a message of our own source was; the sink leaves these columns out.
  private static final List OF_SOURCE = Arrays.asList(new Object[] {"stream", "offset"});

  final int tag;
  final int value;
  final int time;
  final boolean valueIsString;
  // Whether checksums are made, by which a repeat of the write is known.
  final boolean summed;

  private NodeColumns(int tag, int value, int time, boolean valueIsString, boolean summed) {
    this.tag = tag;
    this.value = value;
    this.time = time;
    this.valueIsString = valueIsString;
    this.summed = summed;
  }

  /** Returns the columns of a write; null for one that Python has to look at row by row. */
  static NodeColumns of(
      StructType schema, CaseInsensitiveStringMap options, boolean repeatable) {
    for (int i = 0; i < LEFT_TO_PYTHON.length; i++) {
      if (options.containsKey(LEFT_TO_PYTHON[i])) return null;
    }
    if (SQLConf.get().getConfString(CODEC, "none").equalsIgnoreCase("lz4")) return null;
    List names = names(schema);
    boolean ofSource = names.containsAll(OF_SOURCE);
    for (int i = 0; i < names.size(); i++) {
      Object name = names.get(i);
      boolean left = ofSource && (OF_SOURCE.contains(name) || name.equals("partition"));
      if (!left && !isPacked((String) name, schema.apply(i).dataType())) return null;
      if (names.indexOf(name) != i) return null;
    }
    int value = names.indexOf("value");
    if (value < 0) return null;
    boolean text = schema.apply(value).dataType() instanceof StringType;
    return new NodeColumns(names.indexOf("tag"), value, names.indexOf("time"), text, repeatable);
  }

  /** Returns the names of columns; as Spark compares them, the sink knows them in lower case. */
  private static List names(StructType schema) {
    boolean exact = SQLConf.get().caseSensitiveAnalysis();
    List names = new ArrayList();
    for (int i = 0; i < schema.length(); i++) {
      String name = schema.apply(i).name();
      names.add(exact ? name : name.toLowerCase(Locale.ROOT));
    }
    return names;
  }

  private static boolean isPacked(String name, DataType type) {
    if (name.equals("value")) return type instanceof BinaryType || type instanceof StringType;
    if (name.equals("tag")) return type instanceof StringType;
    return name.equals("time") && type instanceof TimestampType;
  }

  /** Returns the columns that Python gets; headwater.spark.log.staging has their names. */
  StructType sent() {
    StructType sent =
        new StructType()
            .add("__node", BinaryType$.MODULE$, true)
            .add("__first", LongType$.MODULE$, true)
            .add("__newest", LongType$.MODULE$, true)
            .add("__sum", LongType$.MODULE$, true)
            .add("value", BinaryType$.MODULE$, true);
    if (tag >= 0) sent = sent.add("tag", StringType$.MODULE$, true);
    if (time >= 0) sent = sent.add("time", TimestampType$.MODULE$, true);
    return sent;
  }

  GenericInternalRow node(byte[] bytes, long first, long newest, long sum) {
    boolean timed = time >= 0;
    Object[] parts = new Object[5 + (tag >= 0 ? 1 : 0) + (timed ? 1 : 0)];
    parts[0] = bytes;
    if (timed) {
      parts[1] = Long.valueOf(first);
      parts[2] = Long.valueOf(newest);
    }
    parts[3] = Long.valueOf(sum);
    return new GenericInternalRow(parts);
  }

  /** Returns a row as it came; it is good until the next row is asked for. */
  GenericInternalRow passedOn(InternalRow row, UTF8String ofTag, UTF8String ofValue) {
    List parts = new ArrayList(Arrays.asList(new Object[4]));
    parts.add(ofValue == null ? null : ofValue.getBytes());
    if (tag >= 0) parts.add(ofTag == null ? null : ofTag.clone());
    if (time >= 0) parts.add(row.isNullAt(time) ? null : Long.valueOf(row.getLong(time)));
    return new GenericInternalRow(parts.toArray());
  }
}
