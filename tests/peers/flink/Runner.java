import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Runs a SQL script on a local Flink and waits for each INSERT to end.
 *
 * Arguments: parallelism, checkpoint directory, checkpoint interval ("5s" or "off"), script. Statements are separated by
 * a semicolon at a line's end.
 */
public final class Runner {
    public static void main(String[] args) throws Exception {
        int parallelism = Integer.parseInt(args[0]);
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", "rocksdb");
        if (!args[2].equals("off")) {
            configuration.setString("execution.checkpointing.interval", args[2]);
            configuration.setString("execution.checkpointing.incremental", "true");
            configuration.setString("execution.checkpointing.dir", "file://" + args[1]);
        }
        configuration.setString("table.exec.mini-batch.enabled", "true");
        configuration.setString("table.exec.mini-batch.allow-latency", "2s");
        configuration.setString("table.exec.mini-batch.size", "50000");
        configuration.setString("table.optimizer.distinct-agg.split.enabled", "true");
        configuration.setString("taskmanager.memory.managed.size", "2gb");
        configuration.setString("taskmanager.numberOfTaskSlots", Integer.toString(parallelism));
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        for (String statement : Files.readString(Path.of(args[3])).split(";\\s*\\n")) {
            if (statement.isBlank()) {
                continue;
            }
            TableResult result = tables.executeSql(statement);
            if (statement.stripLeading().regionMatches(true, 0, "INSERT", 0, 6)) {
                result.await();
            }
        }
    }
}
