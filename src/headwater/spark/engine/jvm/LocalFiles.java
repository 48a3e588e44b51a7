/*
 * The files of checkpoints on a local disk, without a process for each step.
 *
 * Hadoop writes such files. Without its native library, which PySpark does not bring, it runs the
 * programs chmod and readlink: ten times for each file that a micro-batch leaves in its checkpoint, and it
 * leaves two. That was most of the time of a small micro-batch. Here the same steps are system calls.
 *
 * All else is Hadoop's: the bytes of the files, their checksums, how they are renamed, and every error. What
 * cannot be said by a system call of Java goes to Hadoop as before.
 */
package headwater;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.LinkOption;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends ChecksumFs {
  private static final String SCHEME = "file";
  private static final LinkOption[] FOLLOWING = new LinkOption[0];
  // From the lowest bit upwards.
  private static final PosixFilePermission[] BITS = {
    PosixFilePermission.OTHERS_EXECUTE,
    PosixFilePermission.OTHERS_WRITE,
    PosixFilePermission.OTHERS_READ,
    PosixFilePermission.GROUP_EXECUTE,
    PosixFilePermission.GROUP_WRITE,
    PosixFilePermission.GROUP_READ,
    PosixFilePermission.OWNER_EXECUTE,
    PosixFilePermission.OWNER_WRITE,
    PosixFilePermission.OWNER_READ
  };

  /** As Hadoop makes the class that stands in its settings. */
  public LocalFiles(URI uri, Configuration settings) throws IOException, URISyntaxException {
    super(new Raw(uri, settings));
  }

  /** Files without checksums; in what it adds to its parent it is as Hadoop's own. */
  public static class Raw extends DelegateToFileSystem {
    Raw(URI uri, Configuration settings) throws IOException, URISyntaxException {
      super(uri, new Calls(), settings, SCHEME, false);
    }

    public int getUriDefaultPort() {
      return -1;
    }

    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    public boolean isValidName(String name) {
      return true;
    }
  }

  /** The steps for which Hadoop would run a program. */
  public static class Calls extends RawLocalFileSystem {
    public FileStatus getFileLinkStatus(Path path) throws IOException {
      return isPlain(pathToFile(path)) ? getFileStatus(path) : super.getFileLinkStatus(path);
    }

    /** Returns whether a file is no link; false as well for a name that a path of Java cannot have. */
    private static boolean isPlain(File file) {
      try {
        return !Files.isSymbolicLink(file.toPath());
      } catch (InvalidPathException error) {
        return false;
      }
    }

    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (!isSet(pathToFile(path), permission.toShort())) super.setPermission(path, permission);
    }

    /** Returns whether a file has these permissions now; if not, Hadoop sets them, or reports why not. */
    private static boolean isSet(File file, int mode) {
      // Java has no name for the sticky bit.
      if (mode >> BITS.length != 0) return false;
      Set wanted = EnumSet.noneOf(PosixFilePermission.class);
      for (int i = 0; i < BITS.length; i++) if ((mode >> i & 1) != 0) wanted.add(BITS[i]);
      try {
        if (Files.getPosixFilePermissions(file.toPath(), FOLLOWING).equals(wanted)) return true;
        // The program leaves a directory the bit by which files in it get its group.
        if (file.isDirectory()) return false;
        Files.setPosixFilePermissions(file.toPath(), wanted);
        return true;
      } catch (IOException error) {
        return false;
      } catch (UnsupportedOperationException error) {
        return false;
      } catch (InvalidPathException error) {
        return false;
      }
    }
  }
}
