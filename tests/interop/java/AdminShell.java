import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs the mqadmin commands that come as lines of tab-separated words; a marker ends the output of each. */
public final class AdminShell {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            System.err.flush();
            System.out.println();
            System.out.println("-- end of command");
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
