//! Settings of adapters on frozen weights.

use archipelago_cli::{as_written, range};
use archipelago_core::model::{LoraSpec, LoraTargets, RANK_MAX};
use archipelago_core::wire::FrozenForm;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use crate::errors::ServerError;

/// Settings of adapters (LoRA).
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Training")]
#[serde(rename_all = "kebab-case")]
pub struct LoraArgs {
    /// Train only adapters of this rank (LoRA, 1 to 256) on the model of --init, whose weights stay frozen: learners
    /// fetch those once and cache them; 0 trains all weights
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub lora_rank: u32,
    /// Scale of the adapters (alpha): each adds its product times this value divided by the rank; by default twice the
    /// rank
    #[arg(long, value_name = "NUMBER")]
    #[serde(serialize_with = "written")]
    pub lora_alpha: Option<f32>,
    /// Matrices of each layer that get adapters, of q,k,v,o,gate,up,down; q_proj, v_proj and so on are accepted too
    #[arg(long, value_name = "NAMES", default_value = "q,k,v,o,gate,up,down")]
    #[serde(serialize_with = "as_text")]
    pub lora_targets: LoraTargets,
    /// Format of the frozen weights, on the wire and in memory: f16, or int8 with half the bytes
    #[arg(long, value_name = "FORM", default_value = "f16", value_parser = form())]
    #[serde(serialize_with = "as_text")]
    pub frozen: FrozenForm,
}

impl LoraArgs {
    /// Returns the requested adapters, or `None` if all weights are trained.
    ///
    /// # Errors
    /// - `Setting`: a setting is out of range.
    /// - `Config`: adapter settings are given, but no adapters are requested.
    pub fn spec(&self) -> Result<Option<LoraSpec>, ServerError> {
        let Self { lora_rank: rank, lora_alpha, lora_targets: targets, frozen } = *self;
        range("lora-rank", rank.into(), rank <= RANK_MAX, &format!("0 to {RANK_MAX}"))?;
        if rank == 0 {
            let said = [
                ("lora-alpha", lora_alpha.is_some()),
                ("lora-targets", targets != LoraTargets::ALL),
                ("frozen", frozen != FrozenForm::F16),
            ];
            return match said.into_iter().find(|(_, is_said)| *is_said) {
                None => Ok(None),
                Some((flag, _)) => Err(ServerError::Config {
                    why: format!(
                        "--{flag} is for adapters, and without --lora-rank all weights are trained: give --lora-rank \
                         too, as --lora-rank 8, or leave --{flag} out"
                    ),
                }),
            };
        }
        let alpha = lora_alpha.unwrap_or(2.0 * rank as f32);
        range("lora-alpha", alpha.into(), alpha.is_finite() && alpha > 0.0, "a number above 0")?;
        Ok(Some(LoraSpec { rank, alpha, targets }))
    }
}

fn form() -> impl TypedValueParser<Value = FrozenForm> {
    PossibleValuesParser::new(FrozenForm::ALL.map(FrozenForm::name))
        .map(|name| name.parse().expect("the parser knows no other names"))
}

fn as_text<T: std::fmt::Display, S: serde::Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

#[expect(clippy::ref_option, reason = "serde gives a reference")]
fn written<S: serde::Serializer>(value: &Option<f32>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => as_written(value, to),
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeConfig;

    fn spec(change: impl FnOnce(&mut LoraArgs)) -> Result<Option<LoraSpec>, ServerError> {
        let mut args = ServeConfig::default().lora;
        change(&mut args);
        args.spec()
    }

    #[test]
    fn a_rank_of_nothing_trains_all_weights() {
        assert_eq!(spec(|_| ()).unwrap(), None);
        let targets = LoraTargets::ALL;
        let of = |rank, alpha| Some(LoraSpec { rank, alpha, targets });
        assert_eq!(spec(|args| args.lora_rank = 8).unwrap(), of(8, 16.0), "twice the rank");
        assert_eq!(spec(|args| (args.lora_rank, args.lora_alpha) = (4, Some(4.0))).unwrap(), of(4, 4.0));
    }

    #[test]
    fn refuses_what_is_out_of_range() {
        let check = |change: fn(&mut LoraArgs), part: &str| {
            let error = spec(change).unwrap_err();
            assert_eq!(error.exit_code(), 3, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        };
        check(|args| args.lora_rank = 257, "0 to 256");
        check(|args| args.lora_alpha = Some(16.0), "--lora-alpha is for adapters");
        check(|args| args.lora_targets = "q,v".parse().unwrap(), "give --lora-rank too, as --lora-rank 8");
        check(|args| args.frozen = FrozenForm::Int8, "or leave --frozen out");
        check(|args| (args.lora_rank, args.lora_alpha) = (8, Some(0.0)), "above 0");
        check(|args| (args.lora_rank, args.lora_alpha) = (8, Some(f32::NAN)), "above 0");
    }
}
