/*
 * The inner parts of Spark that our Java reaches by reflection, each looked for once.
 *
 * No other file of ours uses reflection. What is called in the plain way is checked by the compiler,
 * against the very Spark that the session runs on; what stands here is checked when this class is
 * initialised. A part counts as missing, too, when it has another type than the one we use it by.
 */
package headwater;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.Tuple2;

public class Internals {
  private static final String ENVIRONMENT_NAME = "org.apache.spark.SparkEnv";
  private static final String STREAM_NAME = ".PythonMicroBatchStreamWithTriggerAvailableNow";

  /** The names of the parts that this Spark does not have; empty when all are there. */
  public static final List MISSING = new ArrayList();

  static final Field SCAN_SOURCE = scan("ds", PythonDataSourceV2.class);
  static final Field SCAN_NAME = scan("shortName", String.class);
  static final Field SCAN_SCHEMA = scan("outputSchema", StructType.class);
  static final Field SCAN_OPTIONS = scan("options", CaseInsensitiveStringMap.class);
  static final Field SCAN_FILTERS = scan("supportedFilters", Filter[].class);
  static final Field TABLE_NAME = table("shortName", String.class);
  static final Field SOURCE_IN_PYTHON = source("dataSourceInPython", Object.class);

  static final Field TASK_SOURCE = task("source", UserDefinedPythonDataSource.class);
  static final Field TASK_FUNCTION = task("pickledReadFunc", byte[].class);
  static final Field TASK_SCHEMA = task("outputSchema", StructType.class);
  static final Field TASK_ARTIFACTS = task("jobArtifactUUID", Option.class);
  static final Field TASK_SESSION = task("sessionUUID", Option.class);
  static final Field WRITE_SOURCE = write("ds", PythonDataSourceV2.class);
  static final Field WRITE_NAME = write("shortName", String.class);
  static final Field WRITE_INFO = write("info", LogicalWriteInfo.class);
  static final Field WRITE_TRUNCATES = write("isTruncate", Boolean.TYPE);
  static final Field STREAMING_SOURCE = streaming("ds", PythonDataSourceV2.class);
  static final Field STREAMING_NAME = streaming("shortName", String.class);
  static final Field STREAMING_INFO = streaming("info", LogicalWriteInfo.class);
  static final Field STREAMING_TRUNCATES = streaming("isTruncate", Boolean.TYPE);
  static final Field EPOCH = epoch("epochId", Long.TYPE);
  static final Constructor TASK_RUNNER = runner("$MapInBatchEvaluator", "$$anon$1");

  static final MethodHandle ENVIRONMENT = environment("get");
  static final MethodHandle FORKED_WORKER = forked("createPythonWorker");
  static final Field RUNNER_OUT = sourceRunner("dataOut", DataOutputStream.class);
  static final Field RUNNER_IN = sourceRunner("dataIn", DataInputStream.class);
  // Null in a Spark that has no streams which can end: older than 4.2.
  private static final Constructor STREAM = streams();

  private static Field scan(String name, Class type) {
    return field(PythonScan.class, name, name, type);
  }

  private static Field table(String name, Class type) {
    return field(PythonTable.class, name, name, type);
  }

  private static Field source(String name, Class type) {
    return field(PythonDataSourceV2.class, name, name, type);
  }

  private static Field write(String name, Class type) {
    return field(PythonWrite.class, name, name, type);
  }

  private static Field streaming(String name, Class type) {
    return field(PythonStreamingWrite.class, name, name, type);
  }

  private static Field epoch(String name, Class type) {
    return field(MicroBatchWrite.class, name, name, type);
  }

  private static Field task(String name, Class type) {
    Class owner = PythonPartitionReaderFactory.class;
    // The way Scala names what an inner class uses.
    return field(owner, name, owner.getName().replace('.', '$') + "$$" + name, type);
  }

  private static Field sourceRunner(String name, Class type) {
    return field(PythonStreamingSourceRunner.class, name, name, type);
  }

  private static Field field(Class owner, String name, String spelled, Class type) {
    try {
      Field found = owner.getDeclaredField(spelled);
      if (type.isAssignableFrom(found.getType())) {
        found.setAccessible(true);
        return found;
      }
    } catch (Exception error) {
      // As good as one of another type.
    }
    MISSING.add(owner.getSimpleName() + "." + name + " of type " + type.getSimpleName());
    return null;
  }

  private static Constructor runner(String evaluator, String runner) {
    String name = MapInBatchEvaluatorFactory.class.getName() + evaluator;
    try {
      Class[] takes = new Class[] {Class.forName(name), int[][].class};
      Class type = Class.forName(name + runner);
      if (ArrowPythonRunner.class.isAssignableFrom(type)) {
        Constructor found = type.getDeclaredConstructor(takes);
        found.setAccessible(true);
        return found;
      }
    } catch (Exception error) {
      // As good as one of another type.
    }
    MISSING.add("MapInBatchEvaluatorFactory" + evaluator + runner + " of type ArrowPythonRunner");
    return null;
  }

  // By handles: to list all methods of this class takes classes that Spark leaves out.
  private static MethodHandle environment(String name) {
    try {
      Class type = Class.forName(ENVIRONMENT_NAME);
      return MethodHandles.publicLookup().findStatic(type, name, MethodType.methodType(type));
    } catch (Exception error) {
      MISSING.add("SparkEnv." + name);
      return null;
    }
  }

  private static MethodHandle forked(String name) {
    try {
      Class[] takes =
          new Class[] {
            String.class, String.class, String.class, scala.collection.immutable.Map.class
          };
      MethodType type = MethodType.methodType(Tuple2.class, takes);
      return MethodHandles.publicLookup().findVirtual(Class.forName(ENVIRONMENT_NAME), name, type);
    } catch (Exception error) {
      MISSING.add("SparkEnv." + name);
      return null;
    }
  }

  private static Constructor streams() {
    try {
      return Class.forName(PythonScan.class.getPackage().getName() + STREAM_NAME)
          .getConstructor(
              PythonDataSourceV2.class,
              String.class,
              StructType.class,
              CaseInsensitiveStringMap.class,
              PythonStreamingSourceRunner.class);
    } catch (Exception error) {
      return null;
    }
  }

  /** Returns whether this Spark has streams that read what is there and end. */
  static boolean hasStreams() {
    return STREAM != null;
  }

  /** Returns such a stream. */
  static SupportsTriggerAvailableNow stream(
      PythonDataSourceV2 source,
      String name,
      StructType schema,
      CaseInsensitiveStringMap options,
      PythonStreamingSourceRunner runner) {
    try {
      return (SupportsTriggerAvailableNow)
          STREAM.newInstance(new Object[] {source, name, schema, options, runner});
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
  }

  /** Sends the signal to end to a process, by the handle that Spark has for it. */
  static void end(Object process) {
    try {
      // Spark 4.3 has a class of its own for it.
      Class type = process instanceof ProcessHandle ? ProcessHandle.class : process.getClass();
      type.getMethod("destroy").invoke(process);
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
  }
}
