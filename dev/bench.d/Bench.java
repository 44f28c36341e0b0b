// Curator's locks as a subject of dev/bench, with the commands that ./runner
// describes.  A client is a CuratorFramework with default settings, except that
// it does not watch the ensemble's configuration, and has a thread.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Bench
{
	private static final long SECOND = 1_000_000_000;
	private static final long WARM_UP = 20 * SECOND;    // at most

	private static String hosts;
	private static int sessionTimeout;

	// What one client does in its thread; returns text
	private interface Scene
	{
		String run(Client client, int number, long start) throws Exception;
	}

	private static class Client
	{
		final CuratorFramework curator;
		// one object for each path, as an application would keep it
		private final Map<String, InterProcessMutex> mutexes = new HashMap<>();
		private final Map<String, InterProcessMultiLock> multiLocks = new HashMap<>();

		Client()
		{
			curator = CuratorFrameworkFactory.builder()
				.connectString(hosts)
				.sessionTimeoutMs(sessionTimeout)
				.retryPolicy(new ExponentialBackoffRetry(1000, 3))
				.ensembleTracker(false)
				.build();
			curator.start();
		}

		Client connected() throws Exception
		{
			if (!curator.blockUntilConnected(30, TimeUnit.SECONDS)) throw new Exception("no connection within 30 s");
			return this;
		}

		InterProcessMutex mutex(String path)
		{
			return mutexes.computeIfAbsent(path, p -> new InterProcessMutex(curator, p));
		}

		InterProcessMultiLock multiLock(String path, int k)
		{
			return multiLocks.computeIfAbsent(path + " " + k, p -> {
				List<String> paths = new ArrayList<>();
				for (int i = 1; i <= k; i++) paths.add(path + "/" + i);
				return new InterProcessMultiLock(curator, paths);
			});
		}
	}

	private static Client alone;
	private static final List<Client> clients = new ArrayList<>();

	public static void main(String[] args) throws Exception
	{
		hosts = args[0];
		sessionTimeout = Integer.parseInt(args[1]);
		PrintStream out = System.out;
		try {
			warmUp();
			alone = new Client().connected();
		} catch (Exception e) {
			out.println("error " + words(e));
			System.exit(1);
		}
		out.println("ready");

		BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
		for (String line; (line = in.readLine()) != null && !line.equals("quit"); ) {
			String answer;
			try {
				answer = ("ok " + answer(line.split(" "))).strip();
			} catch (Exception e) {
				answer = "error " + words(e);
			}
			out.println(answer);
		}
		haveClients(0);
		alone.curator.close();
		System.exit(0);
	}

	// Runs all scenes on the hosts given, if any, until the JVM has compiled
	// what is measured.  Rounds are short there, and the JVM counts rounds, not
	// time.  So the first measurement is warm even where a round takes long.
	private static void warmUp() throws Exception
	{
		String there = System.getenv("BENCH_WARM_HOSTS");
		String here = hosts;
		String path = "/bench_warm_up/" + ProcessHandle.current().pid();
		long end = System.nanoTime() + WARM_UP;

		if (there == null || there.isEmpty()) return;
		hosts = there;
		alone = new Client().connected();
		Client other = new Client().connected();
		for (int i = 0; i < 50 && System.nanoTime() < end; i++) {
			free(path, 100);
			if (i % 5 == 0) {
				hand(path, 2, 50);
				many(path, 4, 10);
				first(path, 1);
				other.mutex(path).acquire();
				attempt(path, 100);
				other.mutex(path).release();
			}
		}
		haveClients(0);
		other.curator.close();
		alone.curator.close();
		hosts = here;
	}

	private static String answer(String[] word) throws Exception
	{
		switch (word[0]) {
			case "free": return free(word[1], Integer.parseInt(word[2]));
			case "try": return attempt(word[1], Integer.parseInt(word[2]));
			case "many": return many(word[1], Integer.parseInt(word[2]), Integer.parseInt(word[3]));
			case "first": return first(word[1], Integer.parseInt(word[2]));
			case "hand": return hand(word[1], Integer.parseInt(word[2]), Integer.parseInt(word[3]));
			case "own": return own(word[1], Integer.parseInt(word[2]), Double.parseDouble(word[3]));
			case "clients":
				haveClients(Integer.parseInt(word[1]));
				return "";
			case "version": return version();
			default: throw new Exception("no such scene");
		}
	}

	private static String version() throws Exception
	{
		// the jar's manifest does not say
		Path jar = Path.of(InterProcessMutex.class.getProtectionDomain().getCodeSource().getLocation().toURI());
		try (DirectoryStream<Path> jars = Files.newDirectoryStream(jar.getParent(), "curator-recipes-*.jar")) {
			for (Path other : jars)
				return other.getFileName().toString().replaceAll("curator-recipes-([0-9.]*[0-9]).*", "$1")
					+ ", Java " + System.getProperty("java.version");
		}
		return "unknown";
	}

	private static void haveClients(int n) throws Exception
	{
		while (clients.size() > n) clients.remove(clients.size() - 1).curator.close();
		int had = clients.size();
		while (clients.size() < n) clients.add(new Client());
		for (Client client : clients.subList(had, n)) client.connected();
	}

	private static String words(Exception e)
	{
		return (e.getClass() == Exception.class ? e.getMessage() : e.toString()).replace('\n', ' ');
	}

	private static String text(long[] times)
	{
		StringBuilder text = new StringBuilder();
		for (long time : times) text.append(' ').append(time);
		return text.substring(1);
	}

	private static String free(String path, int rounds) throws Exception
	{
		InterProcessMutex mutex = alone.mutex(path);
		long[] times = new long[2 * rounds];
		for (int i = 0; i < rounds; i++) {
			long asked = System.nanoTime();
			mutex.acquire();
			long got = System.nanoTime();
			mutex.release();
			times[2 * i] = got - asked;
			times[2 * i + 1] = System.nanoTime() - got;
		}
		StringBuilder text = new StringBuilder();
		for (int i = 0; i < rounds; i++) text.append(' ').append(times[2 * i]).append(':').append(times[2 * i + 1]);
		return text.substring(1);
	}

	private static String attempt(String path, int rounds) throws Exception
	{
		InterProcessMutex mutex = alone.mutex(path);
		long[] times = new long[rounds];
		for (int i = 0; i < rounds; i++) {
			long began = System.nanoTime();
			boolean got = mutex.acquire(0, TimeUnit.MILLISECONDS);
			times[i] = System.nanoTime() - began;
			if (got) {
				mutex.release();
				throw new Exception("nobody has it: " + path);
			}
		}
		return text(times);
	}

	private static String many(String path, int k, int rounds) throws Exception
	{
		InterProcessMultiLock locks = alone.multiLock(path, k);
		long[] times = new long[rounds];
		for (int i = 0; i < rounds; i++) {
			long began = System.nanoTime();
			locks.acquire();
			locks.release();
			times[i] = System.nanoTime() - began;
		}
		return text(times);
	}

	private static String first(String path, int rounds) throws Exception
	{
		alone.curator.createContainers(path);
		long[] times = new long[rounds];
		for (int i = 0; i < rounds; i++) {
			long began = System.nanoTime();
			Client client = new Client();
			InterProcessMutex mutex = client.mutex(path);
			mutex.acquire();
			times[i] = System.nanoTime() - began;
			mutex.release();
			client.curator.close();
		}
		return text(times);
	}

	private static String hand(String path, int n, int rounds) throws Exception
	{
		return String.join(" ", together(n, (client, number, start) -> {
			InterProcessMutex mutex = client.mutex(path);
			long[] times = new long[4 * rounds];
			sleepUntil(start);
			for (int i = 0; i < 4 * rounds; ) {
				times[i++] = System.nanoTime();
				mutex.acquire();
				times[i++] = System.nanoTime();
				times[i++] = System.nanoTime();
				mutex.release();
				times[i++] = System.nanoTime();
			}
			StringBuilder text = new StringBuilder();
			for (int i = 0; i < 4 * rounds; i += 4) {
				text.append(' ').append(times[i]).append(':').append(times[i + 1]).append(':').append(times[i + 2])
					.append(':').append(times[i + 3]);
			}
			return text.substring(1);
		}));
	}

	// Rounds that end within the measured time count.
	private static String own(String path, int n, double seconds) throws Exception
	{
		long ns = (long) (seconds * SECOND);
		long all = 0;
		for (String count : together(n, (client, number, start) -> {
			InterProcessMutex mutex = client.mutex(path + "/" + number);
			long since = start + SECOND;
			long count = 0;
			sleepUntil(start);
			while (true) {
				mutex.acquire();
				mutex.release();
				long now = System.nanoTime();
				if (now - since >= ns) return Long.toString(count);
				if (now >= since) count++;
			}
		})) all += Long.parseLong(count);
		return all + ":" + ns;
	}

	// The results of this many clients, from 1 on, that all begin at once
	private static List<String> together(int n, Scene scene) throws Exception
	{
		haveClients(n);
		long start = System.nanoTime() + SECOND / 5;
		String[] texts = new String[n];
		Exception[] errors = new Exception[n];
		List<Thread> threads = new ArrayList<>();
		for (int i = 0; i < n; i++) {
			int number = i;
			Thread thread = new Thread(() -> {
				try {
					texts[number] = scene.run(clients.get(number), number + 1, start);
				} catch (Exception e) {
					errors[number] = e;
				}
			});
			threads.add(thread);
			thread.start();
		}
		for (Thread thread : threads) thread.join();
		for (Exception error : errors)
			if (error != null) throw error;
		return List.of(texts);
	}

	private static void sleepUntil(long when)
	{
		for (long left; (left = when - System.nanoTime()) > 0; ) LockSupport.parkNanos(left);
	}
}
