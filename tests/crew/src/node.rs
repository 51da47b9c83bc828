//! Configuration of a NATS node.

use std::fmt::Write as _;
use std::path::Path;

/// Returns the configuration of node `node`. Clients reach it at the port `door`, and nodes reach each other at the
/// ports `routes`. It writes each record to disk before it confirms it, and has `bytes` for all streams. One user has
/// all rights, and another one may not create streams.
pub(crate) fn config(folder: &Path, node: usize, door: u16, routes: &[u16], bytes: u64) -> String {
    let store = folder.join(format!("d{node}"));
    let mut text = format!(
        "server_name: n{node}\nlisten: 127.0.0.1:{door}\n\
         jetstream {{ store_dir: {:?}, sync_interval: always, max_file_store: {bytes} }}\n\
         authorization {{ users: [\n\
         {{ user: owner, password: secret }}\n\
         {{ user: reader, password: secret, permissions: {{ publish: {{ deny: [\"$JS.API.STREAM.CREATE.>\"] }} }} }}\n\
         ] }}\n",
        store.display().to_string()
    );
    if routes.len() > 1 {
        let urls: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let _ = writeln!(
            text,
            "cluster {{ name: c, listen: 127.0.0.1:{}, routes: [{}] }}",
            routes[node],
            urls.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_nodes_know_each_other() {
        let text = config(Path::new("x"), 1, 7, &[11, 12, 13], 99);
        assert!(text.contains("listen: 127.0.0.1:12, routes: [nats://127.0.0.1:11, "), "{text}");
        assert!(text.contains("max_file_store: 99 "), "{text}");
        assert!(!config(Path::new("x"), 0, 7, &[11], 99).contains("cluster"));
    }
}
