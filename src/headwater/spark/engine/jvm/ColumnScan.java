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

import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.BinaryType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class ColumnScan extends PythonScan {
  // The name that headwater.spark.log.columns has for it.
  private static final String NODE = "__node";

  private final PythonDataSourceV2 source;
  private final String name;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private final boolean nodes;

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
    // Filters that were pushed down are applied in Python, to what is in the nodes.
    this.nodes = name.equals("headwater") && filters.length == 0;
  }

  public Scan.ColumnarSupportMode columnarSupportMode() {
    return Scan.ColumnarSupportMode.SUPPORTED;
  }

  public Batch toBatch() {
    StructType asked = nodes ? schema.add(NODE, BinaryType$.MODULE$) : schema;
    return new ColumnBatch(source, name, asked, options, schema);
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
      return new ColumnReaders(tasks, schema, nodes);
    }
  }
}
