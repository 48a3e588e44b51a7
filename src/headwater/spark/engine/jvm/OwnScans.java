/*
 * Gives every scan of a Python data source a source object of its own.
 *
 * Spark 4.3 keeps what it planned for a Python source, the pushed filters with it, in one object for
 * all uses of a DataFrame: of two queries that filter one DataFrame differently, or of two branches
 * of one query, the one that was planned last decides what both of them read. This rule runs at the
 * end of the optimizer, when each scan knows the filters that it pushed, and plans each anew; those
 * of our own formats as a ColumnScan.
 *
 * It is compiled when a session is made, by the compiler that Spark brings for its own code.
 */
package headwater;

import java.util.Collections;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.PartialFunction;
import scala.runtime.AbstractPartialFunction;

public class OwnScans extends Rule {
  // The sources that belong to one scan already; the optimizer asks again until nothing changes.
  private final Map owned = Collections.synchronizedMap(new WeakHashMap());

  public TreeNode apply(TreeNode plan) {
    return plan.transformUp((PartialFunction) new Renewal(this));
  }

  boolean owns(Scan scan) throws Exception {
    return owned.containsKey(Internals.SCAN_SOURCE.get(scan));
  }

  Scan renew(Scan scan) throws Exception {
    PythonDataSourceV2 shared = (PythonDataSourceV2) Internals.SCAN_SOURCE.get(scan);
    String name = (String) Internals.SCAN_NAME.get(scan);
    PythonDataSourceV2 own = new PythonDataSourceV2();
    own.setShortName(name);
    // The source itself was made from the options alone and is the same for every scan.
    Internals.SOURCE_IN_PYTHON.set(own, Internals.SOURCE_IN_PYTHON.get(shared));
    StructType schema = (StructType) Internals.SCAN_SCHEMA.get(scan);
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) Internals.SCAN_OPTIONS.get(scan);
    PythonScanBuilder builder = new PythonScanBuilder(own, name, schema, options);
    Filter[] filters = (Filter[]) Internals.SCAN_FILTERS.get(scan);
    if (filters.length > 0 && builder.pushFilters(filters).length > 0) {
      throw new IllegalStateException("a data source took filters once, but not again");
    }
    owned.put(own, Boolean.TRUE);
    return name.startsWith("headwater")
        ? new ColumnScan(own, name, schema, options, filters)
        : builder.build();
  }

  public static class Renewal extends AbstractPartialFunction {
    private final OwnScans rule;

    public Renewal(OwnScans rule) {
      this.rule = rule;
    }

    public boolean isDefinedAt(Object node) {
      try {
        return node instanceof DataSourceV2ScanRelation
            && ((DataSourceV2ScanRelation) node).scan() instanceof PythonScan
            && !rule.owns(((DataSourceV2ScanRelation) node).scan());
      } catch (Exception error) {
        throw new RuntimeException(error);
      }
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      DataSourceV2ScanRelation old = (DataSourceV2ScanRelation) node;
      try {
        return old.copy(
            old.copy$default$1(),
            rule.renew(old.scan()),
            old.copy$default$3(),
            old.copy$default$4(),
            old.copy$default$5(),
            old.copy$default$6(),
            old.copy$default$7());
      } catch (RuntimeException error) {
        throw error;
      } catch (Exception error) {
        throw new RuntimeException(error);
      }
    }
  }
}
