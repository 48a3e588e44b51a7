/*
 * A catalog over a store: its streams, topics, queues, channels and archives are tables.
 *
 *     spark.sql.catalog.hw            headwater.StoreCatalog
 *     spark.sql.catalog.hw.url        the store, or what the sources take without the option
 *     spark.sql.catalog.hw.archive    the place of archives, for the namespace archives
 *     spark.sql.catalog.hw.instances  a farm, whose timelines are the table timelines.elements
 *     spark.sql.catalog.hw.streams.rides.schema   any option of one table
 *
 * Names come from Python, by a source whose columns are the names. A table is the format of its kind
 * with its options filled in, for reads, writes and streaming queries alike. Tables are neither made
 * nor changed by SQL: whoever writes first makes a stream.
 */
package headwater;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class StoreCatalog implements TableCatalog, SupportsNamespaces {
  // A namespace, the format of its tables, the option that names one, and the setting that all of
  // them take with the url; the last two namespaces are there when their setting is.
  private static final String[][] KINDS = {
    {"streams", "headwater", "stream", "url"},
    {"topics", "headwater", "topic", "url"},
    {"queues", "headwater_queue", "queue", "url"},
    {"channels", "headwater_ick", "channel", "url"},
    {"archives", "headwater", "stream", "archive"},
    {"timelines", "headwater_timeline", null, "instances"}
  };
  // All timelines of a farm are one table.
  private static final String ELEMENTS = "elements";

  private String name;
  private Map given;

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.given = new HashMap(options.asCaseSensitiveMap());
    for (Object key : given.keySet()) if (!isKnown((String) key)) throw unknown((String) key);
  }

  public String name() {
    return name;
  }

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    String[] kind = kind(namespace);
    if (kind == null) throw new NoSuchNamespaceException(namespace);
    if (kind[2] == null) return new Identifier[] {Identifier.of(namespace, ELEMENTS)};
    Map options = settings(kind);
    options.put("kind", kind[0]);
    StructType names = source("headwater_names").inferSchema(new CaseInsensitiveStringMap(options));
    Identifier[] found = new Identifier[names.length()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, names.apply(i).name());
    }
    return found;
  }

  public Table loadTable(Identifier table) throws NoSuchTableException {
    String[] kind = kind(table.namespace());
    if (kind == null) throw new NoSuchTableException(table);
    Map options = settings(kind);
    if (kind[2] != null) {
      options.put(kind[2], table.name());
    } else if (!table.name().equals(ELEMENTS)) {
      throw new NoSuchTableException(table);
    }
    String own = kind[0] + "." + table.name() + ".";
    for (Object key : given.keySet()) {
      String setting = (String) key;
      if (setting.startsWith(own)) options.put(setting.substring(own.length()), given.get(key));
    }
    StructType schema = source(kind[1]).inferSchema(new CaseInsensitiveStringMap(options));
    return new Filled(source(kind[1]), kind[1], schema, options, name + "." + table);
  }

  public String[][] listNamespaces() {
    List found = new ArrayList();
    for (int i = 0; i < KINDS.length; i++) {
      if (isThere(KINDS[i])) found.add(new String[] {KINDS[i][0]});
    }
    return (String[][]) found.toArray(new String[0][]);
  }

  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) return listNamespaces();
    if (kind(namespace) == null) throw new NoSuchNamespaceException(namespace);
    return new String[0][];
  }

  public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (kind(namespace) == null) throw new NoSuchNamespaceException(namespace);
    return new HashMap();
  }

  public void createNamespace(String[] namespace, Map metadata) {
    throw refusal();
  }

  public void alterNamespace(String[] namespace, NamespaceChange[] changes) {
    throw refusal();
  }

  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw refusal();
  }

  public Table alterTable(Identifier table, TableChange[] changes) {
    throw refusal();
  }

  public boolean dropTable(Identifier table) {
    throw refusal();
  }

  public void renameTable(Identifier table, Identifier renamed) {
    throw refusal();
  }

  private static RuntimeException refusal() {
    return new UnsupportedOperationException(
        "a store is not changed by SQL; use the headwater command, or the library");
  }

  private String[] kind(String[] namespace) {
    for (int i = 0; i < KINDS.length; i++) {
      boolean named = namespace.length == 1 && KINDS[i][0].equals(namespace[0]);
      if (named && isThere(KINDS[i])) return KINDS[i];
    }
    return null;
  }

  private boolean isThere(String[] kind) {
    return kind[3].equals("url") || given.containsKey(kind[3]);
  }

  /** Returns the settings that all tables of a kind take as options. */
  private Map settings(String[] kind) {
    Map found = new HashMap();
    if (kind[2] != null && given.containsKey("url")) found.put("url", given.get("url"));
    if (given.containsKey(kind[3])) found.put(kind[3], given.get(kind[3]));
    return found;
  }

  private static boolean isKnown(String setting) {
    for (int i = 0; i < KINDS.length; i++) {
      if (setting.equals(KINDS[i][3]) || setting.startsWith(KINDS[i][0] + ".")) return true;
    }
    return false;
  }

  private RuntimeException unknown(String setting) {
    return new IllegalArgumentException(
        "the catalog "
            + name
            + " has the unknown setting "
            + setting
            + "; known are url, archive, instances, and streams.<name>.<option> for one table");
  }

  private static PythonDataSourceV2 source(String format) {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(format);
    return source;
  }

  /** A table whose options are filled in. */
  public static class Filled extends PythonTable {
    private final Map filled;
    private final String shown;

    Filled(
        PythonDataSourceV2 source, String format, StructType schema, Map filled, String shown) {
      super(source, format, schema);
      this.filled = filled;
      this.shown = shown;
    }

    public String name() {
      return shown;
    }

    public String toString() {
      return shown;
    }

    /** Returns also that rows of any columns may be written: the sink says which it takes. */
    public Set capabilities() {
      Set found = new HashSet(super.capabilities());
      found.add(TableCapability.ACCEPT_ANY_SCHEMA);
      return found;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return super.newScanBuilder(with(options));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return super.newWriteBuilder(new FilledWrite(info, with(info.options())));
    }

    private CaseInsensitiveStringMap with(CaseInsensitiveStringMap options) {
      Map all = new HashMap(filled);
      all.putAll(options.asCaseSensitiveMap());
      return new CaseInsensitiveStringMap(all);
    }
  }

  /** What is to be written, with the options of its table. */
  public static class FilledWrite implements LogicalWriteInfo {
    private final LogicalWriteInfo info;
    private final CaseInsensitiveStringMap options;

    FilledWrite(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
      this.info = info;
      this.options = options;
    }

    public CaseInsensitiveStringMap options() {
      return options;
    }

    public String queryId() {
      return info.queryId();
    }

    public StructType schema() {
      return info.schema();
    }
  }
}
