// Curator's locks, and one of ZooKeeper's recipes, with the commands that
// ./locker describes.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

public class Locker
{
	// The locks of one client.  The read lock and the write lock of a path
	// belong together.
	private static class Locks
	{
		private final CuratorFramework client;
		private final Map<String, InterProcessMutex> locks = new HashMap<>();

		Locks(CuratorFramework client) { this.client = client; }

		InterProcessMutex get(String path, String name) throws Exception
		{
			if (!locks.containsKey(name + path)) {
				switch (name) {
					case "mutex": locks.put(name + path, new InterProcessMutex(client, path)); break;
					case "read":
					case "write":
						InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
						locks.put("write" + path, both.writeLock());
						locks.put("read" + path, both.readLock());
						break;
					default: throw new Exception("no such class: " + name);
				}
			}
			return locks.get(name + path);
		}

		long token(InterProcessMutex lock) throws Exception
		{
			Method method = InterProcessMutex.class.getDeclaredMethod("getLockPath");    // which is protected
			method.setAccessible(true);
			String node = (String) method.invoke(lock);
			Stat stat = node == null ? null : client.checkExists().forPath(node);
			return stat == null ? 0 : stat.getCzxid();
		}
	}

	private static final Map<String, WriteLock> recipes = new HashMap<>();
	private static final List<String> events = new CopyOnWriteArrayList<>();
	private static final List<CuratorFramework> moreClients = new ArrayList<>();
	private static String hosts;
	private static int sessionTimeout;
	private static CuratorFramework client;
	private static Locks locks;

	private static CuratorFramework newClient()
	{
		return CuratorFrameworkFactory.builder()
			.connectString(hosts)
			.sessionTimeoutMs(sessionTimeout)
			.connectionTimeoutMs(15000)
			.retryPolicy(new ExponentialBackoffRetry(1000, 3))
			.ensembleTracker(false)    // avoids a watch on /zookeeper/config
			.build();
	}

	public static void main(String[] args) throws Exception
	{
		hosts = args[0];
		sessionTimeout = Integer.parseInt(args[1]);
		client = newClient();
		client.getConnectionStateListenable().addListener((c, state) -> events.add(state.name()));
		client.start();
		locks = new Locks(client);
		// Before "ready", the listener must have been told, too.
		for (int i = 0; events.isEmpty(); i++) {
			if (i == 3000) throw new Exception("no connection within 30 s");
			Thread.sleep(10);
		}
		say("ready");

		BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
		for (String line; (line = in.readLine()) != null && !line.equals("quit"); ) {
			try {
				say(answer(line.split(" ")));
			} catch (Exception e) {
				say("error " + words(e));
			}
		}
		for (CuratorFramework more : moreClients) more.close();
		client.close();
		System.exit(0);
	}

	private static String answer(String[] word) throws Exception
	{
		switch (word[0]) {
			case "acquire": {
				if (word.length > 3 && word[3].equals("recipe")) return acquireRecipe(word[1], Long.parseLong(word[2]));
				InterProcessMutex lock = locks.get(word[1], word.length > 3 ? word[3] : "mutex");
				long timeout = Long.parseLong(word[2]);
				if (timeout < 0)
					lock.acquire();
				else if (!lock.acquire(timeout, TimeUnit.MILLISECONDS))
					return "timeout";
				return "ok " + locks.token(lock);
			}
			case "release":
				if (word.length > 2 && word[2].equals("recipe")) recipes.remove(word[1]).unlock();
				else locks.get(word[1], word.length > 2 ? word[2] : "mutex").release();
				return "ok";
			case "held":
				return locks.get(word[1], word.length > 2 ? word[2] : "mutex").isAcquiredInThisProcess() ? "yes" : "no";
			case "events":
				return String.join(" ", events);
			case "version":
				// the jar's manifest does not say
				Path jar = Path.of(InterProcessMutex.class.getProtectionDomain().getCodeSource().getLocation().toURI());
				try (DirectoryStream<Path> jars = Files.newDirectoryStream(jar.getParent(), "curator-recipes-*.jar")) {
					for (Path other : jars)
						return other.getFileName().toString().replaceAll("curator-recipes-([0-9.]*[0-9]).*", "$1");
				}
				return "unknown";
			case "clients":
				for (int i = Integer.parseInt(word[1]); i > 0; i--) {
					CuratorFramework more = newClient();
					moreClients.add(more);
					more.start();
					if (!more.blockUntilConnected(30, TimeUnit.SECONDS))
						throw new Exception("no connection within 30 s");
				}
				return "ok";
			case "run":
				return run(word[1], Double.parseDouble(word[2]), word[3], Integer.parseInt(word[4]), Path.of(word[5]),
					Path.of(word[6]));
			default:
				throw new Exception("no such command: " + word[0]);
		}
	}

	// It does not wait, but calls back when it is our turn.
	private static String acquireRecipe(String path, long timeout) throws Exception
	{
		Semaphore turn = new Semaphore(0);
		WriteLock lock = new WriteLock(client.getZookeeperClient().getZooKeeper(), path, null);
		lock.setLockListener(new LockListener() {
			@Override
			public void lockAcquired() { turn.release(); }

			@Override
			public void lockReleased() { }
		});
		client.createContainers(path);
		lock.lock();
		if (!turn.tryAcquire(timeout < 0 ? Long.MAX_VALUE : timeout, TimeUnit.MILLISECONDS)) {
			lock.unlock();
			return "timeout";
		}
		recipes.put(path, lock);
		Stat stat = client.checkExists().forPath(lock.getId());
		return "ok " + (stat == null ? 0 : stat.getCzxid());
	}

	private static String run(String path, double seconds, String name, int share, Path counter, Path logFile)
		throws Exception
	{
		long end = System.nanoTime() + (long) (seconds * 1e9);
		AtomicInteger holds = new AtomicInteger();
		List<String> errors = new CopyOnWriteArrayList<>();
		List<Thread> threads = new ArrayList<>();

		try (FileChannel log = FileChannel.open(logFile, StandardOpenOption.CREATE, StandardOpenOption.APPEND)) {
			for (int i = 0; i < moreClients.size(); i++) {
				int number = i;
				CuratorFramework client = moreClients.get(i);
				Thread thread = new Thread(() -> {
					try {
						Locks locks = new Locks(client);
						Random chance = new Random(number);
						for (int turn = 0; System.nanoTime() - end < 0 && errors.isEmpty(); turn++) {
							boolean shared = turn > 0 && chance.nextInt(100) < share;
							String line = hold(locks, locks.get(path, shared ? "read" : name), shared, counter);
							log.write(ByteBuffer.wrap((number + " " + line + "\n").getBytes()));
							holds.incrementAndGet();
						}
					} catch (Exception e) {
						errors.add("client " + number + ": " + words(e));
					}
				});
				threads.add(thread);
				thread.start();
			}
			for (Thread thread : threads) thread.join();
		}
		return errors.isEmpty() ? "ok " + holds : "error " + String.join("; ", errors);
	}

	// Acquires, does what is done under the lock, releases; returns a line
	// about it.
	private static String hold(Locks locks, InterProcessMutex lock, boolean shared, Path counter) throws Exception
	{
		lock.acquire();
		long since = now();
		long n = read(counter);
		Thread.sleep(shared ? 20 : 1);
		if (!shared) Files.writeString(counter, n + 1 + "\n");
		long token = locks.token(lock);
		long until = now();
		lock.release();
		return String.format("%s %d %d %d", shared ? "shared" : "exclusive", since, until, token);
	}

	private static long read(Path counter) throws Exception
	{
		String text = Files.readString(counter).strip();
		// empty: another process is writing it, in violation of the lock
		return text.isEmpty() ? -1 : Long.parseLong(text);
	}

	private static long now() { return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()); }

	private static String words(Exception e) { return e.toString().replace('\n', ' '); }

	private static void say(String line)
	{
		System.out.println(line);
	}
}
