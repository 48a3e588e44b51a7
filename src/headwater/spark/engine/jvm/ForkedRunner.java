/*
 * Runs the Python side of a streaming query in a process that is forked from one which runs already.
 *
 * Spark starts a Python of its own for each streaming query, which imports PySpark and our library
 * before it answers: most of what such a query costs to start. Spark forks the processes of tasks
 * instead, from a parent that is kept for as long as the application. This runner asks Spark for such
 * a parent, headwater.spark.log.source_daemon, which has imported what a stream needs.
 *
 * All that is said to the process is as it was. Where the parent cannot be started, because Python
 * finds our library only by files that Spark hands to each process, the query gets a Python of its own.
 */
package headwater;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.api.python.PythonWorkerUtils;
import org.apache.spark.api.python.SpecialLengths;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.Tuple2;
import scala.jdk.javaapi.CollectionConverters;

public class ForkedRunner extends PythonStreamingSourceRunner {
  private static final String PARENT = "headwater.spark.log.source_daemon";
  // As Spark has it by default.
  private static final int BUFFER_BYTES = 65536;

  private final PythonFunction source;
  private final StructType schema;
  private PythonWorker worker;
  private Object process;

  ForkedRunner(PythonFunction source, StructType schema) {
    super(source, schema);
    this.source = source;
    this.schema = schema;
  }

  /** Returns a stream whose questions go to such a process. */
  static SupportsTriggerAvailableNow stream(
      PythonDataSourceV2 owner, String name, StructType schema, CaseInsensitiveStringMap options) {
    byte[] source =
        owner.getOrCreateDataSourceInPython(name, options, Option.apply(schema)).dataSource();
    ForkedRunner runner =
        new ForkedRunner(owner.source().createPythonFunction(source), schema);
    runner.init();
    return Internals.stream(owner, name, schema, options, runner);
  }

  public void init() {
    int buffer =
        (int) SparkContext.getOrCreate().getConf().getSizeAsBytes("spark.buffer.size", BUFFER_BYTES);
    Map variables = new HashMap(source.envVars());
    // As Spark sets them for every process of its own.
    variables.put("SPARK_BUFFER_SIZE", String.valueOf(buffer));
    variables.put("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER");
    try {
      Tuple2 forked = forked(variables);
      worker = (PythonWorker) forked._1();
      process = ((Option) forked._2()).get();
    } catch (Throwable error) {
      log().info("A streaming query starts a Python of its own: " + error);
      super.init();
      return;
    }
    try {
      begin(buffer);
    } catch (Throwable error) {
      stop();
      Platform.throwException(error);
    }
  }

  /** Returns a process that Spark has forked, and its handle; Spark keeps the parent. */
  private Tuple2 forked(Map variables) throws Throwable {
    Object environment = Internals.ENVIRONMENT.invokeWithArguments(new Object[0]);
    Object all =
        scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(variables));
    Object[] asked = {environment, source.pythonExec(), workerModule(), PARENT, all};
    return (Tuple2) Internals.FORKED_WORKER.invokeWithArguments(asked);
  }

  /** Sends the source to the process, and waits until it is ready. */
  private void begin(int buffer) throws Exception {
    SocketChannel channel = worker.channel();
    // Tasks read and write by turns, as either is possible; this one asks and waits.
    if (worker.selector() != null) worker.selector().close();
    channel.configureBlocking(true);
    worker.refresh();
    DataOutputStream out =
        new DataOutputStream(
            new BufferedOutputStream(Channels.newOutputStream(channel), buffer));
    PythonWorkerUtils.writePythonVersion(source.pythonVer(), out);
    scala.collection.immutable.Set files =
        CollectionConverters.asScala(source.pythonIncludes()).toSet();
    PythonWorkerUtils.writeSparkFiles(Option.apply("streaming_job"), files, out);
    PythonWorkerUtils.writePythonFunction(source, out);
    PythonWorkerUtils.writeUTF(schema.json(), out);
    out.writeInt(SQLConf.get().arrowMaxRecordsPerBatch());
    out.flush();
    DataInputStream in =
        new DataInputStream(new BufferedInputStream(Channels.newInputStream(channel), buffer));
    if (in.readInt() == SpecialLengths.PYTHON_EXCEPTION_THROWN()) {
      String message = PythonWorkerUtils.readUTF(in);
      Platform.throwException(
          QueryCompilationErrors.pythonDataSourceError("plan", "initialize source", message));
    }
    Internals.RUNNER_OUT.set(this, out);
    Internals.RUNNER_IN.set(this, in);
  }

  /**
   * Ends the process as Spark does: by a signal, which reaches one that waits for a store, and by its
   * socket.
   */
  public void stop() {
    if (worker == null) {
      super.stop();
      return;
    }
    Internals.end(process);
    worker.stop();
  }
}
