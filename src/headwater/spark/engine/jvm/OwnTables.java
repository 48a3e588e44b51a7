/*
 * Puts a table of our own in the place of the one that Spark makes of a Python source of ours.
 *
 * Its scans take no filters. Our formats take filters only from OwnScans, but Spark asks them before
 * that: a question to a Python process, which plans a whole read for it, in every query that has a
 * filter. And its streams say what they are, how far they are behind, and where their query has its
 * checkpoint: see ObservedStream. All else is as it was, and where the rules are not in force, because
 * a session has run queries before, only this is missing.
 *
 * One rule runs before Spark pushes filters down; the other one, for streams, when a query is analyzed,
 * since Spark makes the stream of a query right after that.
 */
package headwater;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.PartialFunction;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

public class OwnTables extends Rule {
  private final Class relation;

  /** ``relation`` is the kind of relation whose tables are exchanged. */
  public OwnTables(Class relation) {
    this.relation = relation;
  }

  public TreeNode apply(TreeNode plan) {
    return plan.transformDown((PartialFunction) new Exchange(relation));
  }

  /** Makes the rule for batch reads of a session. */
  public static class OfBatches extends AbstractFunction1 {
    public Object apply(Object session) {
      return new OwnTables(DataSourceV2Relation.class);
    }
  }

  /** Makes the rule for streaming queries of a session. */
  public static class OfStreams extends AbstractFunction1 {
    public Object apply(Object session) {
      return new OwnTables(StreamingRelationV2.class);
    }
  }

  public static class Exchange extends AbstractPartialFunction {
    private final Class relation;

    Exchange(Class relation) {
      this.relation = relation;
    }

    public boolean isDefinedAt(Object node) {
      if (!relation.isInstance(node)) return false;
      LogicalPlan plan = (LogicalPlan) node;
      Object table = plan.productElement(place(plan));
      try {
        return table instanceof PythonTable
            && ((String) Internals.TABLE_NAME.get(table)).startsWith("headwater");
      } catch (IllegalAccessException error) {
        throw new RuntimeException(error);
      }
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      LogicalPlan old = (LogicalPlan) node;
      // Its parts in their order: not every Spark has as many.
      Object[] parts = new Object[old.productArity()];
      for (int i = 0; i < parts.length; i++) parts[i] = old.productElement(i);
      int place = place(old);
      parts[place] = new OwnTable((Table) parts[place]);
      return old.makeCopy(parts);
    }

    private static int place(LogicalPlan plan) {
      int place = 0;
      while (!(plan.productElement(place) instanceof Table)) place++;
      return place;
    }
  }

  public static class OwnTable implements Table, SupportsRead {
    private final Table table;

    OwnTable(Table table) {
      this.table = table;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new OwnScanBuilder(((SupportsRead) table).newScanBuilder(options));
    }

    public String name() {
      return table.name();
    }

    public StructType schema() {
      return table.schema();
    }

    public Column[] columns() {
      return table.columns();
    }

    public Transform[] partitioning() {
      return table.partitioning();
    }

    public Map properties() {
      return table.properties();
    }

    public Set capabilities() {
      return table.capabilities();
    }

    public boolean equals(Object other) {
      return other instanceof OwnTable && ((OwnTable) other).table.equals(table);
    }

    public int hashCode() {
      return table.hashCode();
    }
  }

  /** Takes no filters. */
  public static class OwnScanBuilder implements ScanBuilder {
    private final ScanBuilder builder;

    OwnScanBuilder(ScanBuilder builder) {
      this.builder = builder;
    }

    public Scan build() {
      Scan scan = builder.build();
      try {
        return new OwnScan(
            (PythonDataSourceV2) Internals.SCAN_SOURCE.get(scan),
            (String) Internals.SCAN_NAME.get(scan),
            (StructType) Internals.SCAN_SCHEMA.get(scan),
            (CaseInsensitiveStringMap) Internals.SCAN_OPTIONS.get(scan));
      } catch (IllegalAccessException error) {
        throw new RuntimeException(error);
      }
    }
  }

  public static class OwnScan extends PythonScan {
    private static final Filter[] NO_FILTERS = new Filter[0];
    // What Spark adds to the checkpoint of a query for each of its sources.
    private static final String OF_SOURCE = "/sources/";

    private final String name;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    OwnScan(
        PythonDataSourceV2 source,
        String name,
        StructType schema,
        CaseInsensitiveStringMap options) {
      super(source, name, schema, options, NO_FILTERS);
      this.name = name;
      this.schema = schema;
      this.options = options;
    }

    /** Returns a stream whose reader knows the checkpoint, by the name that sinks have for it. */
    public MicroBatchStream toMicroBatchStream(String place) {
      Map all = new HashMap(options.asCaseSensitiveMap());
      int end = place.lastIndexOf(OF_SOURCE);
      if (end > 0) all.put("checkpointLocation", place.substring(0, end));
      PythonDataSourceV2 own = new PythonDataSourceV2();
      own.setShortName(name);
      CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(all);
      if (!Internals.hasStreams()) {
        return new PythonScan(own, name, schema, given, NO_FILTERS).toMicroBatchStream(place);
      }
      return new ObservedStream(ForkedRunner.stream(own, name, schema, given), options);
    }
  }
}
