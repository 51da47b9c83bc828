//! Settings of the training method and of a mixture of experts, for runs on a server and for their simulation.

use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::diloco::{MergeRule, OuterSpec, QuorumPolicy};
use archipelago_core::model::{EXPERTS_MAX, ExpertSpec};
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Serialize, Serializer};

use super::units::{SettingError, range, within};

/// Codes that a run can use. Codes with fewer bits exist only for comparison.
const CODES: [Code; 3] = [Code::Int4, Code::E3m0, Code::F32];

/// Default learning rate of the outer step with the rule `flat`. Merges of this rule are shorter in the strongest
/// directions, so it needs a longer step than the other rules. Measured, see `tests/evidence/DECISIONS.md`.
const FLAT_OUTER_LR: &str = "1.4";
const FLAT_OUTER_MOMENTUM: &str = "0.6";

/// How learners exchange parameters: agreed with every learner, and fixed for a run.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Exchange")]
#[serde(rename_all = "kebab-case")]
pub struct ExchangeArgs {
    /// H, steps between two exchanges of the same fragment
    #[arg(long, value_name = "STEPS", default_value_t = 24)]
    pub sync_every: u32,
    /// P, fragments that the parameters are divided into
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub fragments: u16,
    /// Encoding of values on the wire
    #[arg(long, value_name = "CODE", default_value = "int4", value_parser = one_of(&CODES, Code::name))]
    pub code: Code,
    /// Number of values that share one scale (a multiple of 8)
    #[arg(long, value_name = "VALUES", default_value_t = 256)]
    pub block: u32,
    /// How a learner applies a merged fragment: keep, keep-residue, overwrite or blend=SHARE
    #[arg(long, value_name = "POLICY", default_value = "keep-residue", value_parser = apply)]
    #[serde(serialize_with = "apply_as_written")]
    pub apply: ApplyPolicy,
}

/// How the syncer collects and merges updates. Each round may do so differently.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Exchange")]
#[serde(rename_all = "kebab-case")]
pub struct RoundArgs {
    /// γ, share of the slack spent on waiting for stragglers (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = QuorumPolicy::default().grace_ratio)]
    pub grace_ratio: f64,
    /// τ, rounds in flight at once
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub rounds_in_flight: u32,
    /// Merge rule for updates
    #[arg(long, value_name = "RULE", default_value = "radial", value_parser = one_of(&MergeRule::ALL, MergeRule::name))]
    pub merge: MergeRule,
}

/// The outer step of a merge.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Exchange")]
#[serde(rename_all = "kebab-case")]
pub struct OuterArgs {
    /// Outer learning rate; by default larger with --merge flat
    #[arg(long, value_name = "RATE", default_value_t = OuterSpec::default().lr)]
    #[arg(default_value_if("merge", MergeRule::Flat.name(), FLAT_OUTER_LR))]
    #[serde(serialize_with = "as_written")]
    pub outer_lr: f32,
    /// Outer Nesterov momentum (0 to below 1); by default smaller with --merge flat
    #[arg(long, value_name = "SHARE", default_value_t = OuterSpec::default().momentum)]
    #[arg(default_value_if("merge", MergeRule::Flat.name(), FLAT_OUTER_MOMENTUM))]
    #[serde(serialize_with = "as_written")]
    pub outer_momentum: f32,
    /// Share of the run over which the outer momentum rises from 0 (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = SyncerConfig::default().momentum_warmup_ratio)]
    pub momentum_warmup: f64,
}

impl ExchangeArgs {
    /// Returns the settings of the exchange for learners.
    ///
    /// # Errors
    /// [`SettingError`]: a setting is out of range.
    pub fn spec(&self) -> Result<ExchangeSpec, SettingError> {
        let Self { sync_every, fragments, block, code, apply } = *self;
        within("sync-every", sync_every.into(), 1.0..=1e6)?;
        within("fragments", fragments.into(), 1.0..=4_096.0)?;
        let block_holds = block.is_multiple_of(8) && (8..=1 << 16).contains(&block);
        range("block", block.into(), block_holds, "a multiple of 8 from 8 to 65536")?;
        Ok(ExchangeSpec { fragments, sync_every, block, code, apply })
    }
}

impl RoundArgs {
    /// Returns the syncer's settings: these, the outer step `outer`, and the defaults of all others.
    ///
    /// # Errors
    /// [`SettingError`]: a setting is out of range.
    pub fn syncer(&self, outer: &OuterArgs) -> Result<SyncerConfig, SettingError> {
        let OuterArgs { outer_lr: lr, outer_momentum: momentum, momentum_warmup: warmup } = *outer;
        within("outer-lr", lr.into(), 1e-6..=1e3)?;
        let holds = (0.0..1.0).contains(&momentum);
        range("outer-momentum", momentum.into(), holds, "a number from 0 to below 1")?;
        within("momentum-warmup", warmup, 0.0..=1.0)?;
        let Self { grace_ratio, rounds_in_flight, merge } = *self;
        within("rounds-in-flight", rounds_in_flight.into(), 1.0..=1_000.0)?;
        within("grace-ratio", grace_ratio, 0.0..=1.0)?;
        Ok(SyncerConfig {
            quorum: QuorumPolicy { rounds_in_flight, grace_ratio, ..QuorumPolicy::default() },
            outer: OuterSpec { lr, momentum },
            momentum_warmup_ratio: warmup,
            merge,
            ..SyncerConfig::default()
        })
    }
}

/// Serialises a number as the shortest decimal that a flag could have.
///
/// # Errors
/// Those of the serialiser `to`.
pub fn as_written<S: Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(value.to_string().parse().expect("a number is written as one"))
}

fn apply_as_written<S: Serializer>(apply: &ApplyPolicy, to: S) -> Result<S::Ok, S::Error> {
    match apply {
        ApplyPolicy::Keep { residue: false } => to.serialize_str("keep"),
        ApplyPolicy::Keep { residue: true } => to.serialize_str("keep-residue"),
        ApplyPolicy::Overwrite => to.serialize_str("overwrite"),
        ApplyPolicy::Blend { alpha } => to.collect_str(&format_args!("blend={alpha}")),
    }
}

/// Returns a parser for the name of one of `all`, as returned by `name_of`. The help lists the names.
pub fn one_of<T>(all: &'static [T], name_of: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = PossibleValuesParser::new(all.iter().map(|one| name_of(*one)));
    names.map(move |name| {
        *all.iter().find(|one| name_of(**one) == name).expect("the parser knows no other names")
    })
}

/// Text that is not an apply policy.
#[derive(Clone, Debug, thiserror::Error)]
#[error("give keep, keep-residue, overwrite or blend=SHARE, SHARE from 0 to 1")]
struct UnknownPolicy;

fn apply(text: &str) -> Result<ApplyPolicy, UnknownPolicy> {
    let blend = |share: &str| share.parse().ok().filter(|alpha| (0.0..=1.0).contains(alpha));
    match text {
        "keep" => Ok(ApplyPolicy::Keep { residue: false }),
        "keep-residue" => Ok(ApplyPolicy::Keep { residue: true }),
        "overwrite" => Ok(ApplyPolicy::Overwrite),
        other => {
            let alpha = other.strip_prefix("blend=").and_then(blend).ok_or(UnknownPolicy)?;
            Ok(ApplyPolicy::Blend { alpha })
        }
    }
}

/// Settings for the experts of each feed-forward layer.
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    #[command(no_binary_name = true)]
    struct Method {
        #[command(flatten)]
        exchange: ExchangeArgs,
        #[command(flatten)]
        rounds: RoundArgs,
        #[command(flatten)]
        outer: OuterArgs,
    }

    fn read(flag: &str, value: &str) -> Result<Method, String> {
        Method::try_parse_from([flag, value]).map_err(|error| error.to_string())
    }

    #[test]
    fn named_values_are_parsed() {
        assert_eq!(read("--code", "e3m0").unwrap().exchange.code, Code::E3m0);
        assert_eq!(read("--merge", "mean").unwrap().rounds.merge, MergeRule::Mean);
        for (text, policy) in [
            ("keep", ApplyPolicy::Keep { residue: false }),
            ("keep-residue", ApplyPolicy::Keep { residue: true }),
            ("overwrite", ApplyPolicy::Overwrite),
            ("blend=0.5", ApplyPolicy::Blend { alpha: 0.5 }),
        ] {
            let args = read("--apply", text).unwrap().exchange;
            assert_eq!(args.apply, policy);
            assert_eq!(toml::Table::try_from(&args).unwrap()["apply"].as_str(), Some(text));
        }
    }

    #[test]
    fn the_outer_step_follows_the_merge_rule_unless_it_is_given() {
        let outer = |words: &str| {
            let method = Method::try_parse_from(words.split_whitespace()).unwrap();
            method.rounds.syncer(&method.outer).unwrap().outer
        };
        for words in ["", "--merge radial", "--merge mean"] {
            assert_eq!(outer(words), OuterSpec::default(), "{words}");
        }
        assert_eq!(outer("--merge flat"), OuterSpec { lr: 1.4, momentum: 0.6 });
        assert_eq!(outer("--merge flat --outer-lr 0.5"), OuterSpec { lr: 0.5, momentum: 0.6 });
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        for (flag, value, part) in [
            ("--code", "int2", "int4, e3m0, f32"),
            ("--merge", "median", "radial, radial-all, flat, mean"),
            ("--apply", "blend=2", "SHARE from 0 to 1"),
        ] {
            let error = read(flag, value).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn refuses_what_is_out_of_range() {
        let check = |flag: &str, value: &str| {
            let args = read(flag, value).unwrap();
            let syncer = args.rounds.syncer(&args.outer).map(drop);
            let error = args.exchange.spec().map(drop).and(syncer).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{flag} ")), "{error}");
        };
        check("--block", "12");
        check("--sync-every", "0");
        check("--outer-momentum", "1");
        check("--momentum-warmup", "1.1");
        check("--grace-ratio", "NaN");
    }
}
