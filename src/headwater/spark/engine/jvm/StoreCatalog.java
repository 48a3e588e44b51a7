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
 * with its options filled in, for reads, writes and streaming queries alike. Tables are not changed by
 * SQL. Whoever writes first makes a stream, a topic or a queue, so to create one does nothing in the
 * store: only this session knows the table from then on. One that is not there is found by those who
 * write to it, and by nobody else.
 */
package headwater;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.expressions.Transform;
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
  // What comes to be by its first row.
  private static final List CREATED = Arrays.asList(new Object[] {"streams", "topics", "queues"});
  // All timelines of a farm are one table.
  private static final String ELEMENTS = "elements";

  private final Set created = Collections.synchronizedSet(new HashSet());
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
    StructType names = names(kind, settings(kind));
    Identifier[] found = new Identifier[names.length()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, names.apply(i).name());
    }
    return found;
  }

  public Table loadTable(Identifier table) throws NoSuchTableException {
    if (!tableExists(table)) throw new NoSuchTableException(table);
    return filled(table);
  }

  /** Returns a table to write to; the first write makes it, if it is of a kind that comes to be so. */
  public Table loadTable(Identifier table, Set privileges) throws NoSuchTableException {
    String[] kind = kind(table.namespace());
    boolean writes = privileges.contains(TableWritePrivilege.INSERT);
    return writes && kind != null && CREATED.contains(kind[0]) ? filled(table) : loadTable(table);
  }

  public Table loadTable(Identifier table, String version) {
    throw noVersions();
  }

  public Table loadTable(Identifier table, long time) {
    throw noVersions();
  }

  private static RuntimeException noVersions() {
    return new UnsupportedOperationException(
        "a store keeps no versions of a table; read a part of it by WHERE offset <= ..., or by the "
            + "options endingOffsets and endingTimestamp");
  }

  private Table filled(Identifier table) {
    String[] kind = kind(table.namespace());
    Map options = options(kind, table.name());
    StructType schema = source(kind[1]).inferSchema(new CaseInsensitiveStringMap(options));
    return new Filled(source(kind[1]), kind[1], schema, options, name + "." + table);
  }

  /** Returns the options of a table: those of its kind, its name, and its own. */
  private Map options(String[] kind, String table) {
    Map options = settings(kind);
    if (kind[2] != null) options.put(kind[2], table);
    String own = kind[0] + "." + table + ".";
    for (Object key : given.keySet()) {
      String setting = (String) key;
      if (setting.startsWith(own)) options.put(setting.substring(own.length()), given.get(key));
    }
    return options;
  }

  /** Returns whether it is in the store, or was created here and waits for its first row. */
  public boolean tableExists(Identifier table) {
    boolean stored = isStored(table);
    // From its first row on, the store knows whether it is there.
    if (stored) created.remove(table);
    return stored || created.contains(table);
  }

  private boolean isStored(Identifier table) {
    String[] kind = kind(table.namespace());
    if (kind == null) return false;
    if (kind[2] == null) return table.name().equals(ELEMENTS);
    Map options = settings(kind);
    Object archive = options(kind, table.name()).get("archive");
    if (archive != null) options.put("archive", archive);
    options.put("name", table.name());
    return names(kind, options).length() > 0;
  }

  private static StructType names(String[] kind, Map options) {
    options.put("kind", kind[0]);
    return source("headwater_names").inferSchema(new CaseInsensitiveStringMap(options));
  }

  public Table createTable(
      Identifier table, Column[] columns, Transform[] partitions, Map properties) {
    String[] kind = kind(table.namespace());
    if (kind == null || !CREATED.contains(kind[0]) || partitions.length > 0) throw refusal();
    created.add(table);
    return filled(table);
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
    // Spark drops what it has created when the write behind it fails.
    boolean wasCreated = created.remove(table);
    if (!isStored(table)) return wasCreated;
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
