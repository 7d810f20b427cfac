// Java's FileLock, spoken to in the way of the stand-ins: java Locker.java FILE
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

public class Locker {
    public static void main(String[] words) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        FileLock held = null;
        try (FileChannel file = FileChannel.open(Path.of(words[0]), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                switch (line) {
                    case "take" -> {
                        held = file.tryLock();
                        System.out.println(held == null ? "held" : "acquired");
                    }
                    case "share" -> {
                        held = file.tryLock(0, Long.MAX_VALUE, true);
                        System.out.println(held == null ? "held" : "acquired");
                    }
                    case "acquire" -> {
                        held = file.lock();
                        System.out.println("acquired");
                    }
                    default -> {
                        held.release();
                        System.out.println("released");
                    }
                }
            }
        }
    }
}
