//! Scripted learner.

use std::collections::VecDeque;

use archipelago_core::diloco::{Codec, Fragments, Layout, checksum};
use archipelago_core::wire::{
    Fate, FragmentId, LearnerState, LeaseGrant, LeaseId, Message, Progress, Serial, Update, Version, Welcome,
};

use super::{Client, PATIENCE, Server};

/// Learner that trains nothing and sends what the test requests.
pub struct Learner {
    pub client: Client,
    pub welcome: Welcome,
    pub fragments: Fragments,
    pub steps: u64,
    serial: u64,
    /// Rounds that it was asked about and has not answered.
    asked: VecDeque<(FragmentId, Version)>,
    /// Unread questions about the held-out loss.
    pub questions: VecDeque<(u32, Vec<Version>)>,
    /// Granted leases.
    pub leases: Vec<LeaseGrant>,
    /// Number of windows that it reports as trained, in lease order.
    pub windows: u32,
}

impl Learner {
    pub async fn join(server: &Server, number: u8) -> Self {
        let (client, welcome) = Client::greet(server, number).await;
        Self::of(client, welcome).await
    }

    /// Creates the learner on an open socket.
    pub async fn of(mut client: Client, welcome: Welcome) -> Self {
        let layout = Layout::of(&welcome.spec.model).unwrap();
        let fragments = Fragments::plan(&layout, welcome.spec.exchange.fragments.try_into().unwrap());
        client
            .send(&Message::Ready {
                run: welcome.run,
                layout: welcome.layout,
                batch: welcome.spec.inner.batch,
            })
            .await;
        let mut learner = Self {
            client,
            welcome,
            fragments,
            steps: 1,
            serial: 0,
            asked: VecDeque::new(),
            questions: VecDeque::new(),
            leases: vec![],
            windows: 0,
        };
        learner.report().await;
        learner
    }

    /// Reports its progress, with steps of 1 ms.
    pub async fn report(&mut self) {
        let progress = Progress {
            run: self.welcome.run,
            leases: self.progress(),
            steps: self.steps,
            tokens: self.steps * self.step_tokens(),
            step_ms: 1.0,
            loss: 5.0,
            state: LearnerState::Training,
        };
        self.client.send(&Message::Progress(progress)).await;
    }

    /// Returns the reported windows of each of the newest leases.
    fn progress(&self) -> Vec<(LeaseId, u32)> {
        let mut left = self.windows;
        let mut progress = Vec::new();
        for &LeaseGrant { lease, windows, .. } in &self.leases {
            let done = windows.min(left);
            left -= done;
            progress.extend((done > 0).then_some((lease, done)));
        }
        progress.split_off(progress.len().saturating_sub(4))
    }

    pub fn step_tokens(&self) -> u64 {
        u64::from(self.welcome.spec.inner.batch * self.welcome.spec.model.context)
    }

    /// Returns the next message that `pick` accepts. The time limit allows for many other messages.
    pub async fn until<T>(&mut self, pick: impl Fn(Message) -> Option<T>) -> T {
        tokio::time::timeout(3 * PATIENCE, self.pick(pick)).await.expect("the message that is waited for")
    }

    async fn pick<T>(&mut self, pick: impl Fn(Message) -> Option<T>) -> T {
        loop {
            let message = self.client.next().await;
            if let Message::Collect { fragment, base, .. } = message {
                self.asked.push_back((fragment, base));
            }
            if let Message::Lease { grant, .. } = message {
                self.leases.push(grant);
            }
            if let Message::Measure { number, versions, .. } = &message {
                self.questions.push_back((*number, versions.clone()));
            }
            if let Some(picked) = pick(message) {
                return picked;
            }
        }
    }

    /// Gets one update merged.
    pub async fn merge(&mut self) {
        self.steps += 1;
        self.report().await;
        let fate = self.answer(|_| {}).await;
        assert!(matches!(fate, Fate::Merged { .. }), "{fate:?}");
    }

    /// Waits for a round and answers it with an update after `edit`. Returns its fate. If the answer is late, as on a
    /// busy machine, answers the next round.
    pub async fn answer(&mut self, edit: impl Fn(&mut Update)) -> Fate {
        for _ in 0..8 {
            let invitation = self.collect().await;
            let mut update = self.update(invitation, 0.01);
            edit(&mut update);
            self.client.send(&Message::Update(update)).await;
            let fate = self.until(|message| match message {
                Message::Receipt { fate, .. } => Some(fate),
                _ => None,
            });
            match fate.await {
                Fate::Late(_) => {}
                fate => return fate,
            }
        }
        panic!("it is always too late");
    }

    /// Waits for a round. A request may arrive before the fate of the previous update.
    pub async fn collect(&mut self) -> (FragmentId, Version) {
        loop {
            if let Some(asked) = self.asked.pop_front() {
                return asked;
            }
            self.until(|message| matches!(message, Message::Collect { .. }).then_some(())).await;
        }
    }

    /// Returns an update of one step in which every value of the fragment fell by `delta`.
    pub fn update(&mut self, asked: (FragmentId, Version), delta: f32) -> Update {
        self.update_of(asked, |_| delta)
    }

    /// Returns an update of one step in which the value at each place of the fragment fell by the result of `fell`.
    pub fn update_of(
        &mut self,
        (fragment, base): (FragmentId, Version),
        fell: impl Fn(usize) -> f32,
    ) -> Update {
        self.serial += 1;
        let serial = Serial(self.serial);
        let codec = Codec::new(&self.welcome.spec.exchange).unwrap();
        let values: Vec<f32> = (0..self.fragments.len(fragment)).map(fell).collect();
        let body = codec.encode(self.fragments.segments(fragment).unwrap(), &values);
        let checksum = checksum(&body);
        let (run, tokens) = (self.welcome.run, self.step_tokens());
        Update { run, fragment, serial, base, steps: 1, tokens, body, checksum, seen: Vec::new() }
    }
}
