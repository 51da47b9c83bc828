//! One cluster of chips that train in lockstep.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Constants;
use crate::world::Rng;

/// One learner, simulated from stop to stop.
pub(super) struct Learner<'a> {
    /// Seconds of training, weighted by the share of participating chips and their speed.
    pub(super) trained_s: f64,
    /// Seconds weighted by the share of absent chips.
    pub(super) away_s: f64,
    pub(super) interruptions: u64,
    /// Stops, (from, until) in seconds, in order.
    pub(super) stopped: Vec<(f64, f64)>,
    constants: &'a Constants,
    elastic: bool,
    chips: f64,
    /// Participating chips.
    taking_part: f64,
    /// Speed of the slowest slice; the mean is 1.
    speed: f64,
    /// Return times of absent slices, past ones for slices that wait to be taken in. They are the bits of seconds,
    /// which for non-negative numbers sort as the numbers do. The earliest comes first.
    back: BinaryHeap<Reverse<u64>>,
    rng: Rng,
}

impl<'a> Learner<'a> {
    pub(super) fn new(chips: u64, elastic: bool, constants: &'a Constants, mut rng: Rng) -> Self {
        let slices = chips.div_ceil(constants.slice_chips.into());
        // A slice keeps its speed; a possible absence of the slowest one is neglected.
        let speeds = (0..slices).map(|_| 1.0 + constants.speed_spread * f64::from(rng.bell()));
        let speed = if constants.speed_spread > 0.0 { speeds.fold(f64::INFINITY, f64::min) } else { 1.0 };
        Self {
            trained_s: 0.0,
            away_s: 0.0,
            interruptions: 0,
            stopped: Vec::new(),
            constants,
            elastic,
            chips: chips as f64,
            taking_part: chips as f64,
            speed,
            back: BinaryHeap::new(),
            rng,
        }
    }

    pub(super) fn run(&mut self, end_s: f64) {
        let mut now_s = 0.0;
        while now_s < end_s {
            now_s = self.train_and_stop(now_s, end_s);
        }
    }

    /// Trains from `now_s` until the next stop, and returns the time at which training continues.
    fn train_and_stop(&mut self, now_s: f64, end_s: f64) -> f64 {
        let interrupted_s = now_s + self.until_interrupted_s();
        // Returned slices that wait never move the time backwards.
        let due_s = self.next_back_s().map_or(f64::INFINITY, |s| s + self.constants.gather_s).max(now_s);
        let event_s = interrupted_s.min(due_s).min(end_s);
        let stop_s = self.end_of_step(now_s, event_s).min(end_s);
        let share = self.taking_part / self.chips;
        self.trained_s += (stop_s - now_s) * share * self.speed;
        self.away_s += (stop_s - now_s) * (1.0 - share);
        if stop_s >= end_s {
            return end_s;
        }

        let mut lost = self.interrupt(interrupted_s, stop_s);
        let mut stop_for_s = 0.0_f64;
        if !lost.is_empty() {
            let Constants { down_scale_s, restart_s, .. } = *self.constants;
            stop_for_s = if self.elastic { down_scale_s } else { restart_s };
        }
        let taken_in = self.take_in(stop_s);
        if taken_in > 0.0 {
            stop_for_s = stop_for_s.max(self.constants.up_scale_s);
        }
        let resumes_s = stop_s + stop_for_s;
        // Slices interrupted during the stop share it.
        let next_s = stop_s + self.until_interrupted_s();
        lost.extend(self.interrupt(next_s, resumes_s));
        self.away_s += (resumes_s.min(end_s) - stop_s) * (1.0 - self.taking_part / self.chips);
        self.taking_part += taken_in;
        for (lost_s, chips) in lost {
            match self.elastic {
                true => self.send_away(lost_s),
                // A spare takes its place during the restart.
                false => self.taking_part += chips,
            }
        }
        if stop_for_s > 0.0 {
            self.stopped.push((stop_s, resumes_s.min(end_s)));
        }
        resumes_s
    }

    /// Removes the slices interrupted from `first_s` to `until_s`. Returns the time of each loss and its chips.
    fn interrupt(&mut self, first_s: f64, until_s: f64) -> Vec<(f64, f64)> {
        let (mut at_s, mut lost) = (first_s, Vec::new());
        while at_s <= until_s {
            let chips = f64::from(self.constants.slice_chips).min(self.taking_part);
            self.taking_part -= chips;
            self.interruptions += 1;
            lost.push((at_s, chips));
            at_s += self.until_interrupted_s();
        }
        lost
    }

    fn until_interrupted_s(&mut self) -> f64 {
        match self.taking_part > 0.0 {
            true => self.rng.exponential() * self.constants.mtbi_s / self.taking_part,
            false => f64::INFINITY,
        }
    }

    fn send_away(&mut self, lost_s: f64) {
        let back_s = lost_s + self.constants.away.draw_s(&mut self.rng);
        self.back.push(Reverse(back_s.to_bits()));
    }

    fn next_back_s(&self) -> Option<f64> {
        self.back.peek().map(|back| f64::from_bits(back.0))
    }

    /// Removes the slices that are back at `now_s` from the queue, and returns their chips.
    fn take_in(&mut self, now_s: f64) -> f64 {
        let mut slices = 0_u32;
        while self.next_back_s().is_some_and(|back_s| back_s <= now_s) {
            self.back.pop();
            slices += 1;
        }
        let away = self.chips - self.taking_part;
        (f64::from(slices) * f64::from(self.constants.slice_chips)).min(away)
    }

    /// Returns the end of the step that contains `event_s`, for steps that began at `now_s`.
    fn end_of_step(&self, now_s: f64, event_s: f64) -> f64 {
        let step_s = self.constants.step_s;
        if step_s <= 0.0 || event_s == f64::INFINITY {
            return event_s;
        }
        // Rounding must not put the end before the event.
        (now_s + libm::ceil((event_s - now_s) / step_s) * step_s).max(event_s)
    }
}
