//! Detection of the end of a run.

use std::time::Duration;

use archipelago_core::cluster::Record;
use archipelago_core::wire::FragmentId;
use tokio::time::sleep;

use crate::persist::persist;
use crate::service::Services;

/// Poll interval of the tape.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Resolves once the last round of each of these fragments is over, whichever process led it.
pub async fn finished(services: Services, fragments: Vec<FragmentId>) {
    for fragment in fragments {
        let mut last = 0;
        loop {
            let records = persist(|| services.tape.read(fragment, last)).await;
            if records.last() == Some(&Record::Finished) {
                break;
            }
            last += records.len() as u64;
            sleep(LOOK_EVERY).await;
        }
    }
}
