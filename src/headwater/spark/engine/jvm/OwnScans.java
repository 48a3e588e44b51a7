/*
 * Gives every scan of a Python data source a source object of its own.
 *
 * Spark 4.3 keeps what it planned for a Python source, the pushed filters with it, in one object for
 * all uses of a DataFrame: of two queries that filter one DataFrame differently, or of two branches
 * of one query, the one that was planned last decides what both of them read. This rule runs at the
 * end of the optimizer, when the filters and the columns of each scan are known, and plans each scan
 * anew; those of our own formats as a ColumnScan.
 *
 * Our own formats take no filters from Spark itself, only from this rule, which marks the schema that
 * it asks them for. They use filters only to read less: Spark applies all of them to what is read, so
 * that a scan that this rule never saw is right too.
 *
 * It is compiled when a session is made, by the compiler that Spark brings for its own code.
 */
package headwater;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.PartialFunction;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

public class OwnScans extends Rule {
  // The sources that belong to one scan already; the optimizer asks again until nothing changes.
  private final Map owned = Collections.synchronizedMap(new WeakHashMap());

  public TreeNode apply(TreeNode plan) {
    return plan.transformDown((PartialFunction) new Renewal(this));
  }

  boolean owns(Scan scan) throws Exception {
    return owned.containsKey(Internals.SCAN_SOURCE.get(scan));
  }

  /**
   * Returns a relation with a scan of its own.
   *
   * @param condition what Spark keeps of its rows, or null
   * @param used the columns that the query uses, or null for all
   */
  LogicalPlan renew(DataSourceV2ScanRelation old, Expression condition, AttributeSet used)
      throws Exception {
    Scan scan = old.scan();
    PythonDataSourceV2 shared = (PythonDataSourceV2) Internals.SCAN_SOURCE.get(scan);
    String name = (String) Internals.SCAN_NAME.get(scan);
    PythonDataSourceV2 own = new PythonDataSourceV2();
    own.setShortName(name);
    StructType schema = (StructType) Internals.SCAN_SCHEMA.get(scan);
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) Internals.SCAN_OPTIONS.get(scan);
    Map all = TableOptions.of(old.relation());
    if (all.isEmpty()) {
      // The source itself was made from the options alone and is the same for every scan.
      Internals.SOURCE_IN_PYTHON.set(own, Internals.SOURCE_IN_PYTHON.get(shared));
    } else {
      all.putAll(options.asCaseSensitiveMap());
      options = new CaseInsensitiveStringMap(all);
    }
    Seq output = (Seq) old.productElement(2);
    Scan renewed;
    if (name.startsWith("headwater")) {
      if (used != null && ColumnScan.prunes(name) && output.size() == schema.length()) {
        boolean[] kept = ColumnScan.kept(output, used, ColumnScan.least(name));
        output = ColumnScan.columns(output, kept);
        schema = ColumnScan.fields(schema, kept);
      }
      StructType asked = ColumnScan.asked(name, schema);
      PythonScanBuilder builder = new PythonScanBuilder(own, name, asked, options);
      Filter[] filters = filters(condition);
      if (filters.length > 0) builder.pushFilters(filters);
      renewed = new ColumnScan(own, name, schema, options, builder.pushedFilters());
    } else {
      PythonScanBuilder builder = new PythonScanBuilder(own, name, schema, options);
      Filter[] filters = (Filter[]) Internals.SCAN_FILTERS.get(scan);
      if (filters.length > 0 && builder.pushFilters(filters).length > 0) {
        throw new IllegalStateException("a data source took filters once, but not again");
      }
      renewed = builder.build();
    }
    owned.put(own, Boolean.TRUE);
    // Its parts in their order: Spark 4.3 has one more than 4.2.
    Object[] parts = new Object[old.productArity()];
    for (int i = 0; i < parts.length; i++) parts[i] = old.productElement(i);
    parts[1] = renewed;
    parts[2] = output;
    return (LogicalPlan) old.makeCopy(parts);
  }

  /** Returns the parts of a condition that a source may use to read less. */
  private static Filter[] filters(Expression condition) {
    List found = new ArrayList();
    if (condition != null && condition.deterministic()) translate(condition, found);
    return (Filter[]) found.toArray(new Filter[0]);
  }

  private static void translate(Expression condition, List found) {
    if (condition instanceof And) {
      translate(((And) condition).left(), found);
      translate(((And) condition).right(), found);
      return;
    }
    Option filter = DataSourceStrategy$.MODULE$.translateFilter(condition, true);
    if (filter.isDefined()) found.add(filter.get());
  }

  /** A scan that does not have its own source yet, with what stands directly above it. */
  public static class Renewal extends AbstractPartialFunction {
    private final OwnScans rule;

    public Renewal(OwnScans rule) {
      this.rule = rule;
    }

    public boolean isDefinedAt(Object node) {
      try {
        return scanUnder(conditionUnder(node)) != null;
      } catch (Exception error) {
        throw new RuntimeException(error);
      }
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      try {
        Object below = conditionUnder(node);
        org.apache.spark.sql.catalyst.plans.logical.Filter filter =
            below instanceof org.apache.spark.sql.catalyst.plans.logical.Filter
                ? (org.apache.spark.sql.catalyst.plans.logical.Filter) below
                : null;
        Expression condition = filter == null ? null : filter.condition();
        Project project = node instanceof Project ? (Project) node : null;
        AttributeSet used = project == null ? null : project.references();
        if (used != null && filter != null) used = used.$plus$plus(filter.references());
        LogicalPlan made = rule.renew(scanUnder(below), condition, used);
        if (filter != null) made = filter.copy(condition, made);
        if (project != null) made = project.copy(project.projectList(), made);
        return made;
      } catch (RuntimeException error) {
        throw error;
      } catch (Exception error) {
        throw new RuntimeException(error);
      }
    }

    /** Returns what is under a projection, else the node itself. */
    private static Object conditionUnder(Object node) {
      return node instanceof Project ? ((Project) node).child() : node;
    }

    private DataSourceV2ScanRelation scanUnder(Object node) throws Exception {
      if (node instanceof org.apache.spark.sql.catalyst.plans.logical.Filter) {
        node = ((org.apache.spark.sql.catalyst.plans.logical.Filter) node).child();
      }
      if (!(node instanceof DataSourceV2ScanRelation)) return null;
      DataSourceV2ScanRelation found = (DataSourceV2ScanRelation) node;
      return found.scan() instanceof PythonScan && !rule.owns(found.scan()) ? found : null;
    }
  }
}
