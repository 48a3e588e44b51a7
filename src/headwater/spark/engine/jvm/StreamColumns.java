/*
 * Plans micro-batches of the log as columns, as ColumnScan does it for batch reads.
 *
 * Spark makes the stream of a query itself, before any rule sees the query, and reports progress by
 * that very object; so the stream stays, and only the step of the plan that reads from it is ours.
 * What is read is decided by the stream, as ever. Tasks are asked for the columns that the query
 * uses, and for nodes unopened.
 */
package headwater;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceOffset;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

public class StreamColumns extends SparkStrategy {
  /** Returns how a plan is read; nothing for a plan that is not a scan of a stream of ours. */
  public Seq apply(LogicalPlan plan) {
    List found = new ArrayList();
    Project project = plan instanceof Project ? (Project) plan : null;
    LogicalPlan below = project == null ? plan : project.child();
    Filter filter = below instanceof Filter ? (Filter) below : null;
    if (filter != null) below = filter.child();
    if (below instanceof StreamingDataSourceV2ScanRelation) {
      AttributeSet used = project == null ? null : project.references();
      if (used != null && filter != null) used = used.$plus$plus(filter.references());
      SparkPlan made = scan((StreamingDataSourceV2ScanRelation) below, used);
      if (made != null && filter != null) made = new FilterExec(filter.condition(), made);
      if (made != null && project != null) made = new ProjectExec(project.projectList(), made);
      if (made != null) found.add(made);
    }
    return CollectionConverters.asScala(found).toSeq();
  }

  private static SparkPlan scan(StreamingDataSourceV2ScanRelation relation, AttributeSet used) {
    if (relation.startOffset().isEmpty() || relation.endOffset().isEmpty()) return null;
    if (!(relation.scan() instanceof PythonScan)) return null;
    try {
      Scan scan = relation.scan();
      String name = (String) Internals.SCAN_NAME.get(scan);
      StructType schema = (StructType) Internals.SCAN_SCHEMA.get(scan);
      Seq output = relation.output();
      if (!ColumnScan.hasNodes(name) || output.size() != schema.length()) return null;
      if (used != null) {
        boolean[] kept = ColumnScan.kept(output, used, ColumnScan.least(name));
        output = ColumnScan.columns(output, kept);
        schema = ColumnScan.fields(schema, kept);
      }
      ColumnScan columns =
          new ColumnScan(
              (PythonDataSourceV2) Internals.SCAN_SOURCE.get(scan),
              name,
              schema,
              (CaseInsensitiveStringMap) Internals.SCAN_OPTIONS.get(scan),
              new org.apache.spark.sql.sources.Filter[0]);
      return new ColumnStreamExec(
          output,
          columns,
          (MicroBatchStream) relation.stream(),
          (Offset) relation.startOffset().get(),
          (Offset) relation.endOffset().get(),
          Option.empty(),
          Option.empty());
    } catch (IllegalAccessException error) {
      throw new RuntimeException(error);
    }
  }

  /** Reads a micro-batch; Spark makes copies of it by its constructor, which is that of its parent. */
  public static class ColumnStreamExec extends MicroBatchScanExec {
    // The function that reads certain columns, for each stream: made once, not for each micro-batch.
    private static final Map FUNCTIONS = Collections.synchronizedMap(new WeakHashMap());
    private static final ObjectMapper JSON = new ObjectMapper();

    private transient Seq planned;

    public ColumnStreamExec(
        Seq output,
        Scan scan,
        MicroBatchStream stream,
        Offset start,
        Offset end,
        Option partitioning,
        Option ordering) {
      super(output, scan, stream, start, end, partitioning, ordering);
    }

    /**
     * Returns what the tasks read, planned by the stream's one Python process.
     *
     * <p>Several scans of one query may have the same stream, and Spark plans those behind different
     * exchanges at the same time: their questions and answers would mix on one socket, and the query
     * would fail or never end. Each scan locks itself first, as Spark does.
     */
    public Seq inputPartitions() {
      synchronized (this) {
        synchronized (stream()) {
          if (planned == null) {
            InputPartition[] parts = stream().planInputPartitions(start(), asking(end()));
            planned = CollectionConverters.asScala(Arrays.asList((Object[]) parts)).toSeq();
          }
          return planned;
        }
      }
    }

    /**
     * Returns the end of a micro-batch, and beside it which query asks: Python notes it in the store,
     * and returns the rows of a small micro-batch with the plan, since HeldReader takes them here.
     */
    private static Offset asking(Offset end) {
      SparkContext context = SparkContext.getOrCreate();
      String query = context.getLocalProperty("sql.streaming.queryId");
      String batch = context.getLocalProperty("streaming.sql.batchId");
      if (query == null || batch == null) return end;
      try {
        ObjectNode asked = (ObjectNode) JSON.readTree(end.json());
        asked
            .putObject("asking")
            .put("query", query)
            .put("batch", batch)
            .put("about", context.getLocalProperty("spark.job.description"));
        return new PythonStreamingSourceOffset(asked.toString());
      } catch (IOException error) {
        throw new RuntimeException(error);
      }
    }

    public PartitionReaderFactory readerFactory() {
      try {
        PythonDataSourceV2 source = (PythonDataSourceV2) Internals.SCAN_SOURCE.get(scan());
        String name = (String) Internals.SCAN_NAME.get(scan());
        StructType schema = (StructType) Internals.SCAN_SCHEMA.get(scan());
        StructType asked = ColumnScan.asked(name, schema);
        PythonPartitionReaderFactory tasks =
            new PythonPartitionReaderFactory(
                source.source(), function(source, name, asked), asked, Option.empty(), Option.empty());
        return new ColumnReaders(tasks, schema, true, ObservedStream.bytesOf(stream()));
      } catch (IllegalAccessException error) {
        throw new RuntimeException(error);
      }
    }

    private byte[] function(PythonDataSourceV2 source, String name, StructType asked)
        throws IllegalAccessException {
      Map known;
      synchronized (FUNCTIONS) {
        known = (Map) FUNCTIONS.get(stream());
        if (known == null) FUNCTIONS.put(stream(), known = new HashMap());
      }
      synchronized (known) {
        byte[] found = (byte[]) known.get(asked);
        if (found == null) {
          CaseInsensitiveStringMap options =
              (CaseInsensitiveStringMap) Internals.SCAN_OPTIONS.get(scan());
          found =
              source
                  .source()
                  .createReadInfoInPython(
                      source.getOrCreateDataSourceInPython(name, options, Option.apply(asked)),
                      asked,
                      true)
                  .func();
          known.put(asked, found);
        }
        return found;
      }
    }

    /** Returns whether both read the same: Spark compares streams only, and we leave columns out. */
    public boolean equals(Object other) {
      return super.equals(other)
          && other instanceof ColumnStreamExec
          && scan().readSchema().equals(((MicroBatchScanExec) other).scan().readSchema());
    }

    public int hashCode() {
      return super.hashCode();
    }
  }
}
