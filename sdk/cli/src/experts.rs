//! Settings of a mixture of experts in place of dense layers, for runs on a server and for their simulation.

use archipelago_core::model::{EXPERTS_MAX, ExpertSpec};
use serde::Serialize;

use crate::method::as_written;
use crate::range::{SettingError, range};

/// The experts of each feed-forward layer.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Training")]
#[serde(rename_all = "kebab-case")]
pub struct ExpertArgs {
    /// Experts of each feed-forward layer, in place of one dense layer; each is as wide as the dense one; 0 or 1 means
    /// a dense layer
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub experts: u32,
    /// Experts that process each token, if there are any
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub experts_per_token: u32,
    /// Weight of the router's load-balancing loss relative to the text loss, if there are experts (0 or more)
    #[arg(long, value_name = "RATIO", default_value_t = 0.02)]
    #[serde(serialize_with = "as_written")]
    pub router_aux_loss: f32,
}

impl ExpertArgs {
    /// Returns the requested mixture, or `None` for dense layers.
    ///
    /// # Errors
    /// [`SettingError`]: a setting is out of range.
    pub fn spec(&self) -> Result<Option<ExpertSpec>, SettingError> {
        let Self { experts: count, experts_per_token: per_token, router_aux_loss: aux_loss } = *self;
        range("experts", count.into(), count <= EXPERTS_MAX, &format!("0 to {EXPERTS_MAX}"))?;
        if count < 2 {
            return Ok(None);
        }
        let fits = (1..=count).contains(&per_token);
        range("experts-per-token", per_token.into(), fits, &format!("1 to {count}, the experts of a layer"))?;
        let fits = aux_loss.is_finite() && aux_loss >= 0.0;
        range("router-aux-loss", aux_loss.into(), fits, "a number from 0 on")?;
        Ok(Some(ExpertSpec { count, per_token, aux_loss }))
    }
}
