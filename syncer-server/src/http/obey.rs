//! Orders that the owner gave to any process of a run, carried out at this one.

use std::sync::Arc;

use archipelago_core::cluster::AdminCommand;

use super::App;
use crate::clock::unix_ms;
use crate::cluster_node::Order;
use crate::errors::ServerError;

/// Carries out an order of the owner, given to this process or another one, for the learners of this one.
pub async fn obey(app: Arc<App>, decree: AdminCommand) {
    let actor = &app.context.actor;
    let guests = Arc::clone(app.context.admission.guests());
    let done = match decree {
        AdminCommand::Settings(words) => app.settings.obey(actor, &words).await,
        AdminCommand::Ban(fingerprint, note) => {
            blocking(move || guests.ban(fingerprint, &note, unix_ms())).await.map(drop)
        }
        AdminCommand::Lift(fingerprint) => blocking(move || guests.lift(fingerprint)).await.map(drop),
        decree => {
            if let Some(order) = Order::of(&decree, unix_ms()) {
                // The learner concerned may join this process later.
                actor.order(None, order.input()).await;
            }
            Ok(())
        }
    };
    if let Err(why) = done {
        tracing::error!("an order of the owner is not carried out here: {why}");
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("a background task panicked".to_owned()),
    }
}
