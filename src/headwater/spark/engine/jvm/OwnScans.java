/*
 * Gives every scan of a Python data source a source object of its own.
 *
 * Spark 4.3 keeps what it planned for a Python source, the pushed filters with it, in one object for
 * all uses of a DataFrame: of two queries that filter one DataFrame differently, or of two branches
 * of one query, the one that was planned last decides what both of them read. This rule runs at the
 * end of the optimizer, when each scan knows the filters that it pushed, and plans each anew; those
 * of our own formats as a ColumnScan.
 *
 * Compiled when a session is made ready, by the compiler that Spark brings for its own code.
 */
package headwater;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
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
  private final String lacking = ColumnReaders.lacking();

  /** Gives the part of Spark that ColumnScan needs and that is not there; null when it can be used. */
  public String lacking() {
    return lacking;
  }

  public TreeNode apply(TreeNode plan) {
    return plan.transformUp((PartialFunction) new Renewal(this));
  }

  boolean owns(Object scan) throws Exception {
    return owned.containsKey(field(scan, "ds"));
  }

  Scan renew(Scan scan) throws Exception {
    PythonDataSourceV2 shared = (PythonDataSourceV2) field(scan, "ds");
    String name = (String) field(scan, "shortName");
    PythonDataSourceV2 own = new PythonDataSourceV2();
    own.setShortName(name);
    // The source itself was made from the options alone and is the same for every scan.
    Method set = PythonDataSourceV2.class.getDeclaredMethod(
        "dataSourceInPython_$eq",
        new Class[] {
          Class.forName(
              "org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult")
        });
    set.setAccessible(true);
    set.invoke(own, new Object[] {field(PythonDataSourceV2.class, shared, "dataSourceInPython")});
    StructType schema = (StructType) field(scan, "outputSchema");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) field(scan, "options");
    PythonScanBuilder builder = new PythonScanBuilder(own, name, schema, options);
    Filter[] filters = (Filter[]) field(scan, "supportedFilters");
    if (filters.length > 0 && builder.pushFilters(filters).length > 0) {
      throw new IllegalStateException("a data source took filters once, but not again");
    }
    owned.put(own, Boolean.TRUE);
    return lacking == null && name.startsWith("headwater")
        ? new ColumnScan(own, name, schema, options, filters)
        : builder.build();
  }

  static Object field(Object scan, String name) throws Exception {
    return field(PythonScan.class, scan, name);
  }

  static Object field(Class kind, Object holder, String name) throws Exception {
    Field field = kind.getDeclaredField(name);
    field.setAccessible(true);
    return field.get(holder);
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
