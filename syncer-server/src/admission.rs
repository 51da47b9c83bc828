//! Admission of learners by key, ban and invite, before the core sees them. The actor does none of this work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use archipelago_core::bytes::hex;
use archipelago_core::diloco::syncer::{BANNED, Input};
use archipelago_core::wire::{Bye, Challenge, CloseCode, Fingerprint, Hello, Invite, RunId};
use sha2::{Digest, Sha256};
use tokio::time::{MissedTickBehavior, interval};

use crate::actor::{ActorHandle, Command};
use crate::admin_token::is_same;
use crate::clock::unix_ms;
use crate::errors::ServerError;
use crate::identity::verify;
use crate::invites::{InviteFault, InviteStore};
use crate::listener::{ConnectionGuard, TooMany};

/// Interval between checks of the ban list, which other programs may change in the run's folder.
const BANS_EVERY: Duration = Duration::from_secs(1);

/// Terms of admission to a run.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The run.
    pub run: RunId,
    /// True if learners must show an invite.
    pub by_invite: bool,
    /// Invite that all learners can use, if there is one.
    pub invite: Option<Invite>,
}

/// Decides on the admission of learners. Clones share their state.
#[derive(Clone, Debug)]
pub struct Admission(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    terms: Terms,
    invite_store: Arc<InviteStore>,
    banned: Mutex<BTreeSet<Fingerprint>>,
    /// Keys of admitted learners with an open connection, by SHA-256 of the nonce that requests show. Hashing keeps the
    /// time of a look-up from revealing anything about the nonce.
    passes: Mutex<BTreeMap<[u8; 32], Fingerprint>>,
}

/// Guard of one admitted connection's pass; dropping it revokes the pass.
#[derive(Debug)]
pub struct AdmissionPermit {
    shared: Arc<Shared>,
    shown_sha256: [u8; 32],
}

impl Admission {
    /// Creates an admission by `terms`, with the invites and bans in `invite_store`.
    ///
    /// # Errors
    /// `Disk`: the bans cannot be read.
    pub fn new(terms: Terms, invite_store: Arc<InviteStore>) -> Result<Self, ServerError> {
        let banned = invite_store.banned()?.into_keys().collect();
        let passes = Mutex::default();
        Ok(Self(Arc::new(Shared { terms, invite_store, banned: Mutex::new(banned), passes })))
    }

    /// Returns the invites and bans.
    #[must_use]
    pub fn invite_store(&self) -> &Arc<InviteStore> {
        &self.0.invite_store
    }

    /// Returns true if learners must show an invite.
    #[must_use]
    pub fn is_by_invite(&self) -> bool {
        self.0.terms.by_invite
    }

    /// Returns the invite that all learners can use, if there is one.
    #[must_use]
    pub fn invite(&self) -> Option<&Invite> {
        self.0.terms.invite.as_ref()
    }

    /// Returns a challenge for a new connection.
    ///
    /// # Errors
    /// [`getrandom::Error`]: the system gives no random numbers, so that no identity can be verified.
    pub fn challenge(&self) -> Result<Challenge, getrandom::Error> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce)?;
        Ok(Challenge { run: self.0.terms.run, nonce })
    }

    /// Checks that `hello` answers `challenge` and that its learner may join, and returns a pass for it. `guard` is
    /// the counted connection of the peer; wrong invites are rate limited by its origin.
    ///
    /// # Errors
    /// The goodbye for the peer: `Identity`, `Banned` or `Invite`; `Full` if too many wrong invites came from its
    /// address; `Restart` if the disk fails.
    pub async fn judge(
        &self,
        challenge: &Challenge,
        hello: &Hello,
        guard: Option<&ConnectionGuard>,
    ) -> Result<AdmissionPermit, Bye> {
        verify(challenge, hello).map_err(|fault| Bye::new(CloseCode::Identity, fault.to_string()))?;
        let fingerprint = hello.identity.fingerprint();
        if lock(&self.0.banned).contains(&fingerprint) {
            // The ban may have been lifted since the last check.
            let invite_store = Arc::clone(&self.0.invite_store);
            let asked = tokio::task::spawn_blocking(move || invite_store.is_banned(fingerprint)).await;
            if !matches!(asked, Ok(Ok(false))) {
                return Err(Bye::new(CloseCode::Banned, BANNED));
            }
        }
        let shows_secret = self.is_by_invite() && hello.invite.is_some();
        let check = match guard.filter(|_| shows_secret) {
            Some(guard) => Some(guard.check().await.map_err(too_many)?),
            None => None,
        };
        let judged = self.ask(hello).await;
        if let Some(check) = check {
            match &judged {
                Err(Refusal::Invite(InviteFault::Unknown)) => check.wrong().await.map_err(too_many)?,
                _ => check.right(),
            }
        }
        judged.map_err(Refusal::bye)?;
        let shown_sha256 = Sha256::digest(hex(&challenge.nonce)).into();
        lock(&self.0.passes).insert(shown_sha256, fingerprint);
        Ok(AdmissionPermit { shared: Arc::clone(&self.0), shown_sha256 })
    }

    /// Checks that the invite of `hello` suffices for admission.
    async fn ask(&self, hello: &Hello) -> Result<(), Refusal> {
        let is_common = self.shows_common(hello.invite.as_ref().map(|invite| invite.expose().as_bytes()));
        if !self.is_by_invite() || is_common {
            return Ok(());
        }
        let (shared, hello) = (Arc::clone(&self.0), hello.clone());
        let asked = tokio::task::spawn_blocking(move || shared.ask(&hello));
        match asked.await {
            Ok(asked) => asked,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Returns true if a request with this invite or this pass may fetch parameters and data.
    #[must_use]
    pub fn may_fetch(&self, invite: Option<&[u8]>, pass: Option<&[u8]>) -> bool {
        !self.is_by_invite() || self.shows_common(invite) || pass.is_some_and(|pass| self.holds_pass(pass))
    }

    /// Returns true if the pass that is `shown` belongs to an open connection of an admitted learner.
    #[must_use]
    pub fn holds_pass(&self, shown: &[u8]) -> bool {
        lock(&self.0.passes).contains_key(&<[u8; 32]>::from(Sha256::digest(shown)))
    }

    fn shows_common(&self, shown: Option<&[u8]>) -> bool {
        let common = self.invite().map(|invite| invite.expose().as_bytes());
        common.zip(shown).is_some_and(|(common, shown)| is_same(shown, common))
    }

    /// Reads the ban list at intervals until the actor ends, and disconnects banned learners.
    pub async fn watch(self, actor: ActorHandle) {
        let mut tick = interval(BANS_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut sent: BTreeMap<Fingerprint, u32> = BTreeMap::new();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = actor.closed() => return,
            }
            let invite_store = Arc::clone(&self.0.invite_store);
            let read = tokio::task::spawn_blocking(move || invite_store.banned()).await;
            let banned = match read {
                Ok(Ok(banned)) => banned,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "cannot read the list of bans");
                    continue;
                }
                Err(_) => continue,
            };
            *lock(&self.0.banned) = banned.keys().copied().collect();
            // A ban revokes the pass at once, even before the goodbye is sent.
            lock(&self.0.passes).retain(|_, fingerprint| !banned.contains_key(fingerprint));
            sent.retain(|fingerprint, _| banned.contains_key(fingerprint));
            for fingerprint in banned.into_keys() {
                // Sent twice: at the first time, a learner admitted just before may not have reached the actor yet.
                let times = sent.entry(fingerprint).or_default();
                if *times < 2 {
                    *times += 1;
                    actor.send(Command::Input(Input::Ban(fingerprint))).await;
                }
            }
        }
    }
}

impl Shared {
    /// Checks the personal invite of `hello`. Blocks on the disk.
    fn ask(&self, hello: &Hello) -> Result<(), Refusal> {
        let fingerprint = hello.identity.fingerprint();
        let admitted = self.invite_store.admit(fingerprint, hello.invite.as_ref(), unix_ms());
        admitted.map_err(Refusal::Disk)?.map_err(Refusal::Invite)
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        lock(&self.shared.passes).remove(&self.shown_sha256);
    }
}

/// Reasons to refuse a learner whose identity is proven.
enum Refusal {
    Invite(InviteFault),
    Disk(ServerError),
}

impl Refusal {
    /// Returns the goodbye for this reason.
    fn bye(self) -> Bye {
        match self {
            Self::Invite(fault) => Bye::new(CloseCode::Invite, fault.to_string()),
            Self::Disk(error) => {
                tracing::error!(%error, "cannot store the admission of a learner");
                let why = "the syncer cannot store admissions at present: come back later";
                Bye::new(CloseCode::Restart, why)
            }
        }
    }
}

fn too_many(TooMany(wait): TooMany) -> Bye {
    let reason = format!(
        "too many wrong tokens or invites came from your address: come back in {} s with the right one",
        wait.as_secs() + 1
    );
    let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    Bye { wait_ms, ..Bye::new(CloseCode::Full, reason) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each statement leaves the value consistent, so a poisoned lock is safe to use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
