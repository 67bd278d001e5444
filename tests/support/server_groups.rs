//! Servers that belong together: a primary with a replica and a sentinel, and a cluster.

use super::valkey::{Server, wait_until};

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

pub fn replica_of(primary: &Server) -> Server {
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
    wait_until("the replica follows", || follows(&replica, primary));
    replica
}

/// Whether the primary says that this replica is online; only then it counts.
pub fn follows(replica: &Server, primary: &Server) -> bool {
    primary.say(&["INFO", "replication"]).contains(&format!("port={},state=online", replica.port))
}

/// After how many milliseconds without an answer sentinels call a server down at first: so many
/// that a busy machine is no reason.
pub const LATE: u32 = 30_000;

/// The same once a test ends a primary, and waits for another one. With one second a new primary
/// may count as down at once: that is how often it is asked.
pub const SOON: u32 = 2_000;

/// Lets a sentinel call servers down after so many milliseconds.
pub fn calls_down_after(sentinel: &Server, milliseconds: u32) {
    let milliseconds = milliseconds.to_string();
    let set = ["SENTINEL", "SET", "store", "down-after-milliseconds", &milliseconds];
    assert_eq!(sentinel.say(&set), "+OK\r\n");
}

/// A sentinel that knows both, and calls the primary "store".
pub fn sentinel_of(primary: &Server, replica: &Server) -> Server {
    // In the folder of the primary, which is there for longer than the sentinel.
    let file = primary.directory.path().join("sentinel.conf");
    let text = format!(
        "sentinel monitor store 127.0.0.1 {} 1\nsentinel down-after-milliseconds store {LATE}\n\
         sentinel failover-timeout store 2000\n",
        primary.port
    );
    std::fs::write(&file, text).unwrap();
    let sentinel = Server::start_sentinel(&file);
    // The sentinel finds replicas by asking the primary, every 10 seconds or when it begins.
    wait_until("the sentinel knows the replica", || {
        sentinel.say(&["SENTINEL", "REPLICAS", "store"]).contains(&replica.port.to_string())
    });
    sentinel
}

/// As many sentinels as there are lists of further lines of their configurations, which know each
/// other and call the primary "store". Two of them can promote a replica.
pub fn sentinels_of(primary: &Server, lines: &[&str]) -> Vec<Server> {
    let start = |(place, lines): (usize, &&str)| {
        let file = primary.directory.path().join(format!("sentinel-{place}.conf"));
        let text = format!(
            "sentinel monitor store 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds store {LATE}\n\
             sentinel failover-timeout store 2000\n{lines}",
            primary.port
        );
        std::fs::write(&file, text).unwrap();
        Server::start_sentinel(&file)
    };
    lines.iter().enumerate().map(start).collect()
}

/// A node that gives another one up after so many milliseconds.
fn node(timeout: &str) -> Server {
    Server::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        timeout,
        "--cluster-require-full-coverage",
        "no",
    ])
}

/// Primaries without replicas, with the slots dealt evenly. They give each other up after a
/// minute, so that a node on a busy machine does not look dead.
pub fn cluster(count: u16) -> Vec<Server> {
    primaries(count, "60000")
}

fn primaries(count: u16, timeout: &str) -> Vec<Server> {
    let nodes: Vec<_> = (0..count).map(|_| node(timeout)).collect();
    for (place, node) in (0..).zip(&nodes) {
        let first = (SLOTS / count * place).to_string();
        let last = if place + 1 == count { SLOTS } else { SLOTS / count * (place + 1) };
        let last = (last - 1).to_string();
        assert_eq!(node.say(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]), "+OK\r\n");
        let epoch = (place + 1).to_string();
        assert_eq!(node.say(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), "+OK\r\n");
        let port = nodes[0].port.to_string();
        node.say(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    }
    for node in &nodes {
        wait_until("the cluster is well", || {
            let info = node.say(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok")
                && info.contains("cluster_slots_ok:16384")
                && info.contains(&format!("cluster_known_nodes:{count}"))
        });
    }
    nodes
}

/// Primaries, and a replica for each of them. After a second without a primary, they can promote
/// its replica.
pub fn cluster_with_replicas(count: u16) -> (Vec<Server>, Vec<Server>) {
    let nodes = primaries(count, "1000");
    let replicas: Vec<_> = nodes.iter().map(|_| node("1000")).collect();
    for (node, replica) in nodes.iter().zip(&replicas) {
        let (port, id) = (node.port.to_string(), id(node));
        replica.say(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        wait_until("the replica knows its primary", || {
            replica.say(&["CLUSTER", "REPLICATE", &id]) == "+OK\r\n"
        });
    }
    let all = 2 * nodes.len();
    for node in &nodes {
        wait_until("all know each other, and each has its replica", || {
            node.say(&["INFO", "replication"]).contains("state=online")
                && node.say(&["CLUSTER", "INFO"]).contains(&format!("cluster_known_nodes:{all}"))
        });
    }
    (nodes, replicas)
}

/// The name of a node among the nodes of its cluster.
pub fn id(node: &Server) -> String {
    node.say(&["CLUSTER", "MYID"]).lines().nth(1).unwrap().to_owned()
}

/// The address of a cluster by one of its nodes, which knows the others.
pub fn cluster_url(nodes: &[Server]) -> String {
    format!("redis+cluster://{}", nodes[0].address())
}
