package testservers

import "os"

// AsShipped reports whether servers start with the settings of their makers: the durable ones, with
// everything on. PAWL_TEST_AS_SHIPPED=1 says so. Else servers have the settings of this file, each
// with its reason; a test holds the servers to the lists. All other arguments concern places,
// rights, and the members of a Cluster or the Sentinels.
func AsShipped() bool { return os.Getenv("PAWL_TEST_AS_SHIPPED") != "" }

// setting is a deviation from the settings of a server's maker.
type setting struct {
	set []string // in the form of the server
	why string
}

// tuned returns the arguments for settings; a server as shipped gets none.
func tuned(settings []setting) (args []string) {
	if AsShipped() {
		return nil
	}
	for _, s := range settings {
		args = append(args, s.set...)
	}
	return args
}

var redisSettings = []setting{
	{[]string{"--save", ""}, "a server that is killed forgets all; a test that wants a snapshot makes it"},
	{[]string{"--hz", "100"}, "it ends within 10 ms of a signal, not 100"},
	{[]string{"--repl-diskless-sync-delay", "0"}, "a replica follows at once, not after 5 s"},
	{[]string{"--repl-ping-replica-period", "1"}, "masters and replicas see a loss in seconds"},
	{[]string{"--repl-timeout", "5"}, "as above"},
}

var redisClusterSettings = []setting{
	{[]string{"--cluster-node-timeout", "1000"}, "a replica takes over after 2 s, not 20"},
	{[]string{"--cluster-migration-barrier", "100"}, "a replica stays where a test has put it"},
}

var postgresSettings = []setting{
	{[]string{"-c", "shared_buffers=16MB"}, "several servers at once fit into a small machine"},
	{[]string{"-c", "max_connections=400"}, "row mode takes one a lock, and rows of the suite run at once"},
	{[]string{"-c", "autovacuum=off"}, "it would come at any time"},
	{[]string{"-c", "full_page_writes=off"}, "a checkpoint writes less; commits are flushed, because lease mode insists on it"},
	{[]string{"-c", "wal_level=minimal"}, "most have no replica, so less is written"},
	{[]string{"-c", "max_wal_senders=0"}, "wal_level=minimal wants it"},
}

// postgresInitSettings are the settings of initdb.
var postgresInitSettings = []setting{
	{[]string{"--no-sync"}, "new data are made sooner"},
	{[]string{"--wal-segsize=1"}, "new data are 1 MB of log, not 16, to copy for each server"},
}

var mariadbSettings = append([]setting{
	{[]string{"--skip-name-resolve"}, "a connection does not wait for the name service"},
	{[]string{"--max-connections=1000"}, "rows of the suite run at once, each with clients that have pools"},
	{[]string{"--innodb-doublewrite=OFF"}, "what was committed survives the death of the process, if not that of the machine"},
	{[]string{"--innodb-fast-shutdown=2"}, "it ends at once, as in a crash"},
}, mariadbSizes...)

// mariadbSizes are also the sizes with which the data are made.
var mariadbSizes = []setting{
	{[]string{"--innodb-buffer-pool-size=16M"}, "several servers at once fit into a small machine"},
	{[]string{"--innodb-log-file-size=8M"}, "less to copy for each server"},
	{[]string{"--innodb-log-buffer-size=1M"}, "it is small"},
	{[]string{"--key-buffer-size=1M"}, "it is small"},
	{[]string{"--aria-pagecache-buffer-size=1M"}, "it is small"},
	{[]string{"--innodb-flush-method=nosync"}, "what was committed survives the death of the process, if not that of the machine"},
}

var etcdSettings = []setting{
	{[]string{"--heartbeat-interval", "50"}, "as --election-timeout"},
	{[]string{"--election-timeout", "500"}, "a leader is replaced within 1 s, and leases may have 1 s, not 2"},
	{[]string{"--unsafe-no-fsync"}, "what was committed survives the death of the process, if not that of the machine"},
	{[]string{"--log-level", "error"}, "its log says why it failed, and nothing else"},
}

// zookeeperSettings are those of the virtual machine and of properties.
var zookeeperSettings = []setting{
	{[]string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"}, "it starts sooner, with fewer threads"},
	{[]string{"-Xss256k", "-Xms16m", "-Xmx96m"}, "several servers at once fit into a small machine"},
	{[]string{"-Dzookeeper.preAllocSize=64"}, "its log grows by 64 KB, not by 64 MB"},
	{[]string{"-Dzookeeper.forceSync=no"}, "what was committed survives the death of the process, if not that of the machine"},
	{[]string{"-Dznode.container.checkIntervalMs=1000"}, "empty folders go after a second, not a minute"},
}

// zookeeperConfig are the settings of its file; the sample that is shipped has the others.
var zookeeperConfig = []setting{
	{[]string{"tickTime=200"}, "sessions may have 400 ms, not 4 s"},
	{[]string{"initLimit=25"}, "5 s to join an ensemble, whatever the tick"},
	{[]string{"syncLimit=5"}, "1 s to fall behind"},
	{[]string{"maxClientCnxns=0"}, "all clients of a test come from one address"},
	{[]string{"minSessionTimeout=200"}, "as tickTime"},
	{[]string{"maxSessionTimeout=300000"}, "300 s, whatever the tick"},
}

// rabbitmqSettings are lines of its file.
var rabbitmqSettings = []setting{
	{[]string{"disk_free_limit.absolute = 10MB"}, "a disk that is almost full does not block publishers"},
	{[]string{"vm_memory_high_watermark.absolute = 512MB"}, "memory that others have taken does not block publishers"},
	{[]string{"max_message_size = 2097152"}, "a message over the limit has 2 MB, not 128"},
}

// ZooKeeperTick is the tick of the servers, in milliseconds.
func ZooKeeperTick() int {
	if AsShipped() {
		return 2000
	}
	return 200
}
