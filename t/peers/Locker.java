// Curator's mutex behind the lines that ./locker describes.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.data.Stat;

public class Locker
{
	// Only a subclass may ask for the node's name.
	private static class Mutex extends InterProcessMutex
	{
		Mutex(CuratorFramework client, String path) { super(client, path); }

		String node() { return getLockPath(); }
	}

	private static final Map<String, Mutex> mutexes = new HashMap<>();
	private static final List<String> events = new CopyOnWriteArrayList<>();
	private static CuratorFramework client;

	public static void main(String[] args) throws Exception
	{
		client = CuratorFrameworkFactory.builder()
			.connectString(args[0])
			.sessionTimeoutMs(Integer.parseInt(args[1]))
			.connectionTimeoutMs(15000)
			.retryPolicy(new ExponentialBackoffRetry(1000, 3))
			.build();
		client.getConnectionStateListenable().addListener((c, state) -> events.add(state.name()));
		client.start();
		// "ready" means that the listener has heard of it, too.
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
				say("error " + e.toString().replace('\n', ' '));
			}
		}
		client.close();
		System.exit(0);
	}

	private static String answer(String[] word) throws Exception
	{
		Mutex mutex = word.length < 2 ? null : mutexes.computeIfAbsent(word[1], path -> new Mutex(client, path));

		switch (word[0]) {
			case "acquire":
				long timeout = Long.parseLong(word[2]);
				if (timeout < 0)
					mutex.acquire();
				else if (!mutex.acquire(timeout, TimeUnit.MILLISECONDS))
					return "timeout";
				Stat stat = client.checkExists().forPath(mutex.node());
				return "ok " + (stat == null ? 0 : stat.getCzxid());
			case "release":
				mutex.release();
				return "ok";
			case "held":
				return mutex.isAcquiredInThisProcess() ? "yes" : "no";
			case "events":
				return String.join(" ", events);
			default:
				throw new Exception("no such command: " + word[0]);
		}
	}

	private static void say(String line)
	{
		System.out.println(line);
	}
}
