/*
 * Finds the options that a table of the session's catalog was made with.
 *
 * Spark 4.3 keeps what stands in CREATE TABLE ... USING ... OPTIONS, and hands none of it to a Python
 * source when the table is read.
 */
package headwater;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

public class TableOptions {
  // Other catalogs see to the options of their tables themselves.
  private static final String SESSIONS = "spark_catalog";

  /** Returns the options of the table that a relation stands for; none when it is no table. */
  static Map of(DataSourceV2Relation relation) throws Exception {
    Map found = new HashMap();
    boolean named = relation.identifier().isDefined() && relation.catalog().isDefined();
    if (named && ((CatalogPlugin) relation.catalog().get()).name().equals(SESSIONS)) {
      Identifier name = (Identifier) relation.identifier().get();
      String[] space = name.namespace();
      Option database = space.length == 0 ? Option.empty() : Option.apply(space[0]);
      SparkSession session = (SparkSession) SparkSession.active();
      CatalogTable table =
          session
              .sessionState()
              .catalog()
              .getTableMetadata(new TableIdentifier(name.name(), database));
      found.putAll(CollectionConverters.asJava(table.storage().properties()));
    }
    return found;
  }
}
