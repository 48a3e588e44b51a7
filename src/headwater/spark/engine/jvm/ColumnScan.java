/*
 * A scan of one of our Python sources that returns columns to Spark instead of rows.
 *
 * Python returns Arrow. Spark 4.3 makes a row of its own of each Arrow row as it arrives, counts it,
 * and makes another row of that one, with all its columns, whatever the query needs. When it gets
 * columns, it makes one row at the end, in generated code, of the columns that are used.
 *
 * The log goes further: its tasks are asked for one more column, in which they return whole nodes as
 * they lie in the store, and Nodes opens them here.
 */
package headwater;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.BinaryType$;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

public class ColumnScan extends PythonScan {
  // The name that headwater.spark.log.columns has for it.
  private static final String NODE = "__node";
  // The name that headwater.spark.engine.columns has for it.
  private static final String MARK = "headwater.own_scan";

  private final PythonDataSourceV2 source;
  private final String name;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;

  /** Returns whether tasks of a format return nodes unopened. */
  static boolean hasNodes(String name) {
    return name.equals("headwater");
  }

  /** Returns whether tasks of a format make only the columns that they are asked for. */
  static boolean prunes(String name) {
    return hasNodes(name) || name.equals("headwater_table");
  }

  /** Returns how many columns tasks of a format must be asked for. */
  static int least(String name) {
    return hasNodes(name) ? 0 : 1;
  }

  /** Returns the columns that tasks are asked for, marked, so that Spark gets those of a schema. */
  static StructType asked(String name, StructType schema) {
    if (hasNodes(name)) return schema.add(NODE, BinaryType$.MODULE$, true, mark(null));
    StructField[] fields = (StructField[]) schema.fields().clone();
    StructField last = fields[fields.length - 1];
    fields[fields.length - 1] =
        new StructField(last.name(), last.dataType(), last.nullable(), mark(last.metadata()));
    return new StructType(fields);
  }

  /** Returns for each column whether it is used; the first ``least`` count as used. */
  static boolean[] kept(Seq output, AttributeSet used, int least) {
    boolean[] kept = new boolean[output.size()];
    int count = 0;
    for (int i = 0; i < kept.length; i++) {
      kept[i] = used.contains((AttributeReference) output.apply(i));
      if (kept[i]) count++;
    }
    for (int i = 0; i < kept.length && count < least; i++) {
      if (!kept[i]) count++;
      kept[i] = true;
    }
    return kept;
  }

  static Seq columns(Seq output, boolean[] kept) {
    List found = new ArrayList();
    for (int i = 0; i < kept.length; i++) if (kept[i]) found.add(output.apply(i));
    return CollectionConverters.asScala(found).toSeq();
  }

  static StructType fields(StructType schema, boolean[] kept) {
    List found = new ArrayList();
    for (int i = 0; i < kept.length; i++) if (kept[i]) found.add(schema.apply(i));
    return new StructType((StructField[]) found.toArray(new StructField[0]));
  }

  private static Metadata mark(Metadata metadata) {
    MetadataBuilder marked = new MetadataBuilder();
    if (metadata != null) marked.withMetadata(metadata);
    return marked.putBoolean(MARK, true).build();
  }

  public ColumnScan(
      PythonDataSourceV2 source,
      String name,
      StructType schema,
      CaseInsensitiveStringMap options,
      Filter[] filters) {
    super(source, name, schema, options, filters);
    this.source = source;
    this.name = name;
    this.schema = schema;
    this.options = options;
  }

  public Scan.ColumnarSupportMode columnarSupportMode() {
    return Scan.ColumnarSupportMode.SUPPORTED;
  }

  public Batch toBatch() {
    return new ColumnBatch(source, name, asked(name, schema), options, schema);
  }

  public static class ColumnBatch extends PythonBatch {
    private final StructType schema;
    private final boolean nodes;

    public ColumnBatch(
        PythonDataSourceV2 source,
        String name,
        StructType asked,
        CaseInsensitiveStringMap options,
        StructType schema) {
      super(source, name, asked, options);
      this.schema = schema;
      this.nodes = asked.length() > schema.length();
    }

    public PartitionReaderFactory createReaderFactory() {
      PythonPartitionReaderFactory tasks =
          (PythonPartitionReaderFactory) super.createReaderFactory();
      return new ColumnReaders(tasks, schema, nodes, null);
    }
  }
}
