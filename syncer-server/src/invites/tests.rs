//! Tests of invites (spent, expired, revoked) and of bans (stored, lifted).

use archipelago_core::wire::Invite;

use super::*;

const DAY_MS: u64 = 24 * 3_600_000;

fn key(number: u8) -> Fingerprint {
    Fingerprint([number; 16])
}

fn terms(uses: u32, lasts_ms: Option<u64>) -> InviteTerms {
    InviteTerms { uses, lasts_ms, note: "for the lab".into() }
}

#[test]
fn an_invite_is_spent_once_and_stays_spent() {
    let dir = tempfile::tempdir().unwrap();
    let invite_store = InviteStore::open(dir.path()).unwrap();
    let made = invite_store.invite(&terms(2, None), 1_000).unwrap();
    let shown = Invite::new(made.invite.clone());
    let check = |invite_store: &InviteStore, number, shown: Option<&Invite>, expected| {
        assert_eq!(invite_store.admit(key(number), shown, 2_000).unwrap(), expected, "key {number}");
    };
    check(&invite_store, 1, None, Err(InviteFault::Missing));
    check(&invite_store, 1, Some(&Invite::new("no such invite")), Err(InviteFault::Unknown));
    check(&invite_store, 1, Some(&shown), Ok(()));
    check(&invite_store, 1, Some(&shown), Ok(()));
    // A crash would not close the file either.
    std::mem::forget(invite_store);
    let invite_store = InviteStore::open(dir.path()).unwrap();
    check(&invite_store, 1, None, Ok(()));
    check(&invite_store, 2, Some(&shown), Ok(()));
    check(&invite_store, 3, Some(&shown), Err(InviteFault::UsedUp));
    let listed = invite_store.invites().unwrap();
    assert_eq!((listed[0].used, listed[0].uses, listed[0].id.as_str()), (2, 2, made.id.as_str()));
    // No bytes in the folder can be used as an invite.
    drop(invite_store);
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(32).any(|part| made.invite.as_bytes().ends_with(part)), "only its hash");
    }
}

#[test]
fn simultaneous_admissions_do_not_exceed_the_uses() {
    let dir = tempfile::tempdir().unwrap();
    let shown = InviteStore::open(dir.path()).unwrap().invite(&terms(3, None), 0).unwrap().invite;
    let admitted: u32 = std::thread::scope(|scope| {
        let comers = (1..=8).map(|number| {
            let (dir, shown) = (dir.path(), Invite::new(shown.clone()));
            // Each thread has its own connection, like another program next to a server.
            scope.spawn(move || {
                let invite_store = InviteStore::open(dir).unwrap();
                u32::from(invite_store.admit(key(number), Some(&shown), 1).unwrap().is_ok())
            })
        });
        comers.collect::<Vec<_>>().into_iter().map(|comer| comer.join().unwrap()).sum()
    });
    assert_eq!(admitted, 3);
}

#[test]
fn an_invite_ends_by_time_or_by_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let invite_store = InviteStore::open(dir.path()).unwrap();
    let brief = Invite::new(invite_store.invite(&terms(9, Some(7 * DAY_MS)), 1_000).unwrap().invite);
    let made = invite_store.invite(&terms(9, None), 1_000).unwrap();
    let revoked = Invite::new(made.invite);
    let admit = |number, shown, at_ms| invite_store.admit(key(number), Some(shown), at_ms).unwrap();
    assert_eq!(admit(1, &brief, 1_000 + 7 * DAY_MS - 1), Ok(()));
    assert_eq!(admit(2, &brief, 1_000 + 7 * DAY_MS), Err(InviteFault::Over));
    assert_eq!(admit(3, &revoked, 2_000), Ok(()));
    assert_eq!(invite_store.revoke(&made.id, 3_000).unwrap(), Some(true));
    assert_eq!(invite_store.revoke(&made.id, 4_000).unwrap(), Some(false));
    assert_eq!(invite_store.revoke("none", 4_000).unwrap(), None);
    assert_eq!(admit(4, &revoked, 5_000), Err(InviteFault::Revoked));
    assert_eq!(admit(3, &revoked, 5_000), Ok(()), "who is in stays in");
    let wrong = invite_store.invite(&terms(0, None), 0).unwrap_err();
    assert!(wrong.to_string().contains("1 to 100000"), "{wrong}");
    let wrong = invite_store.invite(&InviteTerms { note: "x".repeat(201), ..terms(1, None) }, 0).unwrap_err();
    assert!(wrong.to_string().contains("shorten it"), "{wrong}");
}

#[test]
fn a_ban_is_stored_until_it_is_lifted() {
    let dir = tempfile::tempdir().unwrap();
    let invite_store = InviteStore::open(dir.path()).unwrap();
    assert!(invite_store.ban(key(1), "noise", 10).unwrap());
    assert!(!invite_store.ban(key(1), "again", 20).unwrap());
    drop(invite_store);
    let invite_store = InviteStore::open(dir.path()).unwrap();
    let [BanView { fingerprint, note, at_ms }] = &invite_store.bans().unwrap()[..] else { panic!("one ban") };
    assert_eq!((fingerprint.parse(), note.as_str(), *at_ms), (Ok(key(1)), "noise", 10));
    assert_eq!(invite_store.banned().unwrap().into_iter().collect::<Vec<_>>(), [(key(1), 10)]);
    assert!(invite_store.lift(key(1)).unwrap() && !invite_store.lift(key(1)).unwrap());
    assert!(invite_store.banned().unwrap().is_empty());
}

#[test]
fn a_file_of_a_later_version_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(InviteStore::open(dir.path()).unwrap());
    let db = Connection::open(dir.path().join(FILE)).unwrap();
    db.pragma_update(None, "user_version", 2).unwrap();
    drop(db);
    let error = InviteStore::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("use a newer one"), "{error}");
}

#[test]
fn a_copy_includes_the_write_ahead_log() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    InviteStore::copy(dir.path(), to.path()).unwrap();
    assert!(!to.path().join(FILE).exists(), "a run of before there were guests has none");
    let invite_store = InviteStore::open(dir.path()).unwrap();
    let made = invite_store.invite(&terms(2, None), 1_000).unwrap();
    assert!(invite_store.ban(key(7), "", 1_000).unwrap());
    InviteStore::copy(dir.path(), to.path()).unwrap();
    let copy = InviteStore::open(to.path()).unwrap();
    assert_eq!(copy.invites().unwrap()[0].id, made.id);
    assert!(copy.is_banned(key(7)).unwrap() && !copy.is_banned(key(8)).unwrap());
}
