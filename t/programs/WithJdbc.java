// Does with doc/programs/java.md's code, which follows, what t/096_docs_programs.pl says.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.postgresql.util.PGInterval;

class WithJdbc {
    static final BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    static String url;
    static HikariDataSource pool;
    static int attempts;

    interface Call {
        Object make() throws Exception;
    }

    static String stateOf(Call call) throws Exception {
        try {
            return String.valueOf(call.make());
        } catch (SQLException e) {
            return e.getSQLState();
        }
    }

    static void execute(Connection db, String sql) throws SQLException {
        try (Statement s = db.createStatement()) {
            s.execute(sql);
        }
    }

    static long held(Connection db) throws SQLException {
        try (Statement s = db.createStatement(); ResultSet result = s.executeQuery("SELECT count(*) FROM zk_locks")) {
            result.next();
            return result.getLong(1);
        }
    }

    static String dirty() throws Exception {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(url);
        config.setMaximumPoolSize(1);
        try (HikariDataSource dirty = new HikariDataSource(config)) {
            try (Connection db = dirty.getConnection()) {
                execute(db, "SELECT zk_lock('/pool')");
            }
            try (Connection db = dirty.getConnection()) {
                System.out.println("next user: " + held(db));
            }
            in.readLine();
        }
        return "closed";
    }

    static String clean() throws Exception {
        OwnSession.run(pool, db -> {
            execute(db, "SELECT zk_lock('/pool')");
            return null;
        });
        try {
            OwnSession.run(pool, db -> {
                execute(db, "SELECT zk_lock('/pool')");
                execute(db, "SELECT 1 / 0");
                return null;
            });
        } catch (SQLException e) {
            // its connection is gone
        }
        try (Connection db = pool.getConnection()) {
            return "next user: " + held(db);
        }
    }

    static String lockWith(Connection db, Object timeout) throws Exception {
        return stateOf(() -> {
            try (PreparedStatement s = db.prepareStatement("SELECT zk_xact_lock('/jobs/report', ?)")) {
                s.setObject(1, timeout);
                ResultSet result = s.executeQuery();
                result.next();
                return result.getBoolean(1);
            } finally {
                db.rollback();
            }
        });
    }

    static String timeouts() throws Exception {
        try (Connection db = pool.getConnection()) {
            return stateOf(() -> Patient.lock(db, "/jobs/report", Duration.ZERO))
                + " " + lockWith(db, new PGInterval("0 ms"))
                + " " + lockWith(db, "0 ms") + " " + lockWith(db, 5) + " " + lockWith(db, Duration.ZERO);
        }
    }

    static String cancel() throws Exception {
        try (Connection db = pool.getConnection(); Statement s = db.createStatement()) {
            Thread other = new Thread(() -> {
                try {
                    in.readLine();
                    s.cancel();
                } catch (Exception e) {
                    System.exit(1);
                }
            });
            other.start();
            System.out.println("waits");
            String state = stateOf(() -> s.execute("SELECT zk_lock('/jobs/report')"));
            other.join();
            return state;
        }
    }

    static Object work(Connection db) throws SQLException {
        try {
            attempts++;
            System.out.println("working");
            String[] words = in.readLine().split(" ");
            execute(db, "UPDATE account SET n = n + 1");
            if (words.length == 2) {
                System.out.println("written");
                in.readLine();
                execute(db, "SELECT zk_xact_lock('" + words[1] + "')");
            }
            return null;
        } catch (java.io.IOException e) {
            throw new SQLException(e);
        }
    }

    static String answer(String[] words) throws Exception {
        attempts = 0;
        switch (words[0]) {
            case "dirty": return dirty();
            case "clean": return clean();
            case "timeouts": return timeouts();
            case "cancel": return cancel();
            case "in_lock": Retry.inLock(pool, words[1], WithJdbc::work); break;
            case "in_session_lock": Retry.inSessionLock(pool, words[1], WithJdbc::work); break;
            default: return "error";
        }
        return "done " + attempts;
    }

    public static void main(String[] args) throws Exception {
        url = args[0];
        pool = Pool.open(url);
        Nightly.run(pool);
        System.out.println("ready");
        for (String line = in.readLine(); !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println(stateOf(() -> answer(words)));
        }
        pool.close();
    }
}
