//! A member that is asked for the held-out loss.

use super::*;
use crate::data::encode_held_out;

impl Rig {
    /// Plays a shell that measures: the loss is the number of tokens in the windows.
    pub(super) fn measure(&mut self, output: Output) {
        match output {
            Output::FetchHeldOut { .. } => {
                let bytes = match self.script.held_out {
                    Some(token) => Ok(encode_held_out(&[token; 10])),
                    None => Err("the test says so".to_owned()),
                };
                self.tell(Input::HeldOut { bytes });
            }
            Output::Measure { number, windows } => {
                self.tell(Input::Measured { number, loss: Some(windows.len() as f32) });
            }
            _ => {}
        }
    }

    /// Breaks the connection.
    pub(super) fn cut(&mut self) {
        self.hang_up();
        self.tell(Input::Closed { code: None, reason: "it broke".to_owned() });
    }

    fn ask(&mut self, number: u32, versions: &[u64]) {
        let versions = versions.iter().copied().map(Version).collect();
        self.tell(Input::Message(Message::Measure { run: RunId(7), number, versions }));
    }

    fn held(&self) -> Vec<u64> {
        self.member.versions().map(|version| version.unwrap().0).collect()
    }
}

#[test]
fn it_measures_what_it_holds_as_soon_as_that_is_asked_for() {
    let mut rig = Rig::joined();
    rig.script.held_out = Some(7);
    rig.ask(1, &rig.held());
    assert_eq!(rig.log.measured, [(1, Some(10.0))]);
    // It does not hold the next versions yet.
    let next: Vec<u64> = rig.held().iter().map(|version| version + 1).collect();
    rig.ask(2, &next);
    assert_eq!(rig.log.measured.len(), 1);
    while rig.log.measured.len() == 1 {
        rig.run_for(SECOND_US);
        assert!(rig.now_us < 600 * SECOND_US, "{:?} of {next:?}", rig.held());
    }
    assert!(rig.held() >= next);
    assert_eq!(rig.log.measured[1], (2, Some(10.0)));
}

#[test]
fn without_windows_of_the_run_it_says_that_it_cannot() {
    let mut rig = Rig::joined();
    for (number, held_out) in [(1, None), (2, Some(256))] {
        rig.script.held_out = held_out;
        rig.ask(number, &rig.held());
        assert_eq!(rig.log.measured.last(), Some(&(number, None)));
        assert_eq!(rig.log.troubles.len() as u32, number, "{:?}", rig.log.troubles);
    }
    let other = Message::Measure { run: RunId(8), number: 3, versions: vec![] };
    rig.tell(Input::Message(other));
    assert_eq!(rig.log.measured.len(), 2, "of another run it measures nothing");
}

#[test]
fn a_question_ends_with_its_connection() {
    let mut rig = Rig::joined();
    rig.script.held_out = Some(7);
    let next: Vec<u64> = rig.held().iter().map(|version| version + 1).collect();
    rig.ask(1, &next);
    rig.cut();
    rig.run_for(60 * SECOND_US);
    assert!(rig.held() >= next);
    assert_eq!(rig.log.measured, []);
}
