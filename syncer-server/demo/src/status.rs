//! The part of the syncer's status that the demo uses.

use serde_json::Value;

/// Status of a run. Losses are in nats per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub params: u64,
    pub rounds: u64,
    /// True once the run is complete and training has ended.
    pub finished: bool,
    pub tokens_trained: u64,
    pub tokens_merged: u64,
    pub participation: f64,
    /// Updates without a fate whose round is over; 0 in a sound run.
    pub updates_without_fate: u64,
    pub train_loss: Option<f64>,
    pub val_loss_first: Option<f64>,
    pub val_loss: Option<f64>,
    /// Lowest possible loss on the corpus, if known.
    pub entropy_floor: Option<f64>,
    /// Bytes on the sockets: learners to syncer, and back.
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub bits_per_param_up: Option<f64>,
    pub bits_per_param_down: Option<f64>,
    /// Learners, ordered by id.
    pub learners: Vec<Learner>,
}

/// Status of one learner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learner {
    pub name: String,
    /// Current activity; `None` while the learner is away.
    pub state: Option<String>,
    pub tokens_trained: u64,
    pub tokens_merged: u64,
    pub loss: Option<f64>,
}

impl Status {
    /// Parses the syncer's JSON.
    ///
    /// # Errors
    /// A sentence with the name of the missing field.
    pub fn read(json: &Value) -> Result<Self, String> {
        Ok(Self {
            params: count(json, "/params")?,
            rounds: count(json, "/rounds")?,
            finished: field(json, "/finished")?.as_bool().unwrap_or_default(),
            tokens_trained: count(json, "/tokensTrained")?,
            tokens_merged: count(json, "/tokensMerged")?,
            participation: number(json, "/participation")?,
            updates_without_fate: count(json, "/updatesPending")?,
            train_loss: known(json, "/trainLoss")?,
            val_loss_first: known(json, "/valLossFirst")?,
            val_loss: known(json, "/valLossLast")?,
            entropy_floor: known(json, "/entropyFloor")?,
            bytes_up: count(json, "/bytesUp")?,
            bytes_down: count(json, "/bytesDown")?,
            bits_per_param_up: known(json, "/bitsPerParamUp")?,
            bits_per_param_down: known(json, "/bitsPerParamDown")?,
            learners: field(json, "/learners")?
                .as_array()
                .ok_or("the syncer's status: /learners is no list")?
                .iter()
                .map(Learner::read)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl Learner {
    fn read(json: &Value) -> Result<Self, String> {
        let text = |path| field(json, path).map(|value| value.as_str().map(str::to_owned));
        Ok(Self {
            name: text("/name")?.unwrap_or_default(),
            state: text("/state")?,
            tokens_trained: count(json, "/tokensTrained")?,
            tokens_merged: count(json, "/tokensMerged")?,
            loss: known(json, "/loss")?,
        })
    }
}

fn field<'a>(json: &'a Value, path: &str) -> Result<&'a Value, String> {
    json.pointer(path).ok_or_else(|| format!("the syncer's status has no {path}"))
}

fn count(json: &Value, path: &str) -> Result<u64, String> {
    field(json, path)?.as_u64().ok_or_else(|| format!("the syncer's status: {path} is no count"))
}

fn number(json: &Value, path: &str) -> Result<f64, String> {
    field(json, path)?.as_f64().ok_or_else(|| format!("the syncer's status: {path} is no number"))
}

/// Returns a number that may be unknown.
fn known(json: &Value, path: &str) -> Result<Option<f64>, String> {
    field(json, path).map(Value::as_f64)
}
