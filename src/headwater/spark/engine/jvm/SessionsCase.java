/*
 * Tells a sink in Python that names of columns are case-sensitive in this session.
 *
 * Spark does not pass its settings to a Python sink. Where names are case-sensitive, the setting is
 * added to the options of the write (headwater.spark.engine.columns reads it there).
 */
package headwater;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class SessionsCase {
  private static final String SETTING = "spark.sql.caseSensitive";

  private SessionsCase() {}

  /** Returns what is to be written, with the setting if a sink of ours has to know it. */
  static LogicalWriteInfo told(String format, LogicalWriteInfo info) {
    if (!format.startsWith("headwater") || !SQLConf.get().caseSensitiveAnalysis()) return info;
    if (info.options().containsKey(SETTING)) return info;
    Map options = new HashMap(info.options().asCaseSensitiveMap());
    options.put(SETTING, "true");
    return new Told(info, new CaseInsensitiveStringMap(options));
  }

  /** What is to be written, with other options. */
  public static class Told implements LogicalWriteInfo {
    private final LogicalWriteInfo info;
    private final CaseInsensitiveStringMap options;

    Told(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
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
