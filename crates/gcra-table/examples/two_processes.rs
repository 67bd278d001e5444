//! Several processes share one limit. Start this two or three times at once:
//!
//! ```sh
//! cargo run -p gcra-table --example two_processes
//! ```
//!
//! Together they are allowed 5 cells at once and then 1 a second, however many they are.

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use gcra_table::{Rate, Slots, Table};

fn main() -> Result<(), Box<dyn Error>> {
    let quota = "1/s".parse::<Rate>()?.quota(Some(5))?;
    let path = Path::new("/dev/shm/gcra-table-example");
    let (table, opened) = Table::open_or_create(path, Some(Slots::new(1024)?))?;
    println!("{}: {opened:?}", path.display());

    let key = table.hash(b"192.0.2.1");
    for _ in 0..20 {
        let decision = table.charge(key, quota, 1, &mut table.reading());
        match decision.retry_after() {
            None => println!("allowed, {} left", quota.remaining(decision.owed())),
            Some(wait) => println!("denied, the next is allowed in {} ms", wait.millis_ceil()),
        }
        // Writes down how far time has advanced, and that this process is alive.
        table.beat();
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
