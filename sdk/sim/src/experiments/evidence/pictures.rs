//! The plots of the evidence's tables.

use super::picture::{Line, Picture};
use crate::experiments::{Mark, Scale};

/// Plot of the excess of the loss over that of data-parallel training in percent, over M.
pub const GAPS: &str = "learners-gap";

/// All plots.
#[must_use]
pub fn all() -> Vec<Picture> {
    vec![
        gaps(),
        pair("experts", "A mixture of four experts", "EXPERTS.md", "Three hundred thousand tokens"),
        pair("pictures", "Captions and pictures in one stream", "PICTURES.md", "Pictures beside words"),
        codes(),
        turns(),
        fragments(),
        flight(),
        comings(),
        joining(),
        steps(),
        links(
            "links",
            "A learner behind a far or thin link",
            ("share of its time that it trains, %", "training"),
        ),
        links(
            "links-steps",
            "Its steps beside those of a near learner",
            ("steps over those of the near one, %", "steps"),
        ),
        away(),
        kills(),
        crowd(),
        tuning("tuning", "Fine-tuning all weights", "all weights, rate"),
        tuning("tuning-adapters", "Fine-tuning adapters of rank 8", "adapters, rate"),
        poison(),
        noticed(),
    ]
}

/// Creates a line through the first number of each cell.
fn line(name: &'static str, colour: u8, page: &'static str, heading: &'static str) -> Line {
    let (mark, rows, numbers) = (Mark::Line, Vec::new(), 0..1);
    Line { name, colour, mark, page, heading, rows, x: "", y: "", numbers }
}

fn gaps() -> Picture {
    let of = |name, colour, heading| Line { y: "mean", ..line(name, colour, "README.md", heading) };
    let seeds = |colour, heading| {
        let (mark, y, numbers) = (Mark::Hollow, "above it, by seed", 0..3);
        Line { mark, y, numbers, ..line("", colour, "README.md", heading) }
    };
    let headings = ["Learners", "369 steps", "6,000 steps"];
    let names = ["3 M tokens of all", "369 steps each", "6,000 steps each"];
    let mut lines: Vec<Line> =
        (0..).zip(names.iter().zip(headings)).map(|(i, (name, at))| of(name, i, at)).collect();
    let small = line("small, 3 M tokens", 3, "DECISIONS.md", "Why 0.6 and 0.6, before");
    lines.push(Line { x: "M", y: "gap", numbers: 3..4, ..small });
    lines.extend((0..).zip(headings).map(|(i, at)| seeds(i, at)));
    Picture {
        name: GAPS,
        title: "Learners together above data-parallel training",
        x: ("M, learners; hollow: single seeds", Scale::Log),
        y: ("held-out loss above, %", Scale::Linear),
        lines,
    }
}

/// Creates a plot of the losses of learners and of data-parallel training over M.
fn pair(name: &'static str, title: &'static str, page: &'static str, heading: &'static str) -> Picture {
    let of = |colour, column| Line { x: "learners", y: column, ..line(column, colour, page, heading) };
    Picture {
        name,
        title,
        x: ("M, learners", Scale::Log),
        y: ("held-out loss, nats", Scale::Linear),
        lines: vec![of(0, "decoupled"), of(1, "data-parallel")],
    }
}

fn codes() -> Picture {
    let of = |name, colour, mark, y, numbers| Line {
        mark,
        x: "code",
        y,
        numbers,
        ..line(name, colour, "README.md", "Codes")
    };
    Picture {
        name: "codes",
        title: "Four learners, codes of 4, 2 and 1 bits beside 32",
        x: ("", Scale::Names(Vec::new())),
        y: ("held-out loss above f32, %", Scale::Linear),
        lines: vec![
            of("ours, mean", 0, Mark::Dot, "mean", 0..1),
            of("ours, each seed", 0, Mark::Hollow, "by seed", 0..3),
            of("paper", 1, Mark::Hollow, "paper, loss", 0..1),
        ],
    }
}

/// Creates a line for a table of `SETTINGS.md`: percent above the first row.
fn setting(name: &'static str, colour: u8, heading: &'static str, x: &'static str, y: &'static str) -> Line {
    Line { x, y, ..line(name, colour, "SETTINGS.md", heading) }
}

/// Creates a line for the column `y` of such a table, and marks for each of three seeds.
fn with_seeds(heading: &'static str, x: &'static str, y: &'static str) -> Vec<Line> {
    let of = |name, y| setting(name, 0, heading, x, y);
    vec![of("mean", y), Line { mark: Mark::Hollow, numbers: 0..3, ..of("each seed", "by seed") }]
}

fn turns() -> Picture {
    Picture {
        name: "turns",
        title: "Four learners, by the steps of a turn",
        x: ("H, steps between two rounds of a fragment", Scale::Log),
        y: ("test loss above H = 24, %", Scale::Linear),
        lines: with_seeds("Steps of a turn", "H", "above H = 24, %"),
    }
}

fn fragments() -> Picture {
    Picture {
        name: "fragments",
        title: "Four learners, by the parts that parameters are exchanged in",
        x: ("P, fragments", Scale::Log),
        y: ("test loss above P = 8, %", Scale::Linear),
        lines: with_seeds("Fragments", "P", "above P = 8, %"),
    }
}

fn flight() -> Picture {
    let of = |name, colour| setting(name, colour, "Rounds in flight", "one way, ms", name);
    Picture {
        name: "flight",
        title: "Four learners, all of them far away, steps of 100 ms",
        x: ("from a learner to the syncer, ms", Scale::Log),
        y: ("test loss above 20 ms and τ = 2, %", Scale::Linear),
        lines: vec![of("τ = 1", 0), of("τ = 2", 1), of("τ = 4", 2)],
    }
}

fn comings() -> Picture {
    Picture {
        name: "comings",
        title: "One of four learners after the other is killed, and back after 30 s",
        x: ("seconds from one kill to the next", Scale::Log),
        y: ("test loss above nobody killed, %", Scale::Linear),
        lines: vec![setting(
            "as many tokens",
            0,
            "Coming and going",
            "a kill every, s",
            "above nobody killed, %",
        )],
    }
}

fn joining() -> Picture {
    Picture {
        name: "joining",
        title: "Learners that join four when half of the tokens are trained",
        x: ("learners that join", Scale::Linear),
        y: ("test loss above nobody joining, %", Scale::Linear),
        lines: with_seeds("Joining half-way", "learners that join", "above nobody joining, %"),
    }
}

fn steps() -> Picture {
    let bare = "above data-parallel, %";
    let larger = "The same for a model seven times as large";
    Picture {
        name: "steps",
        title: "Four learners beside data-parallel training, each at its best rate",
        x: ("steps of each learner", Scale::Log),
        y: ("test loss above, %", Scale::Linear),
        lines: vec![
            setting("above data-parallel", 0, "Steps", "steps", bare),
            setting("above it with Lookahead", 1, "Steps", "steps", "above it with Lookahead, %"),
            setting("0.8 M, data-parallel", 2, larger, "steps of small", bare),
        ],
    }
}

fn links(name: &'static str, title: &'static str, (label, y): (&'static str, &'static str)) -> Picture {
    let of = |name, colour, preset, round_trip| Line {
        rows: vec![("", preset), ("round trip, ms", round_trip)],
        x: "rate, Mbit/s",
        y,
        ..line(name, colour, "LINKS.md", "The whole grid")
    };
    Picture {
        name,
        title,
        x: ("link, Mbit/s", Scale::Log),
        y: (label, Scale::Linear),
        lines: vec![
            of("small, round trip 0 ms", 0, "small", "0"),
            of("small, 300 ms", 1, "small", "300"),
            of("small, 1,000 ms", 2, "small", "1,000"),
            of("tiny, 0 ms", 3, "tiny", "0"),
            of("tiny, 300 ms", 4, "tiny", "300"),
            of("tiny, 1,000 ms", 5, "tiny", "1,000"),
        ],
    }
}

fn away() -> Picture {
    const WHO: &str = "one of eight, beside eight near ones";
    let of = |name, colour, y| Line {
        rows: vec![(WHO, "away for")],
        x: WHO,
        y,
        ..line(name, colour, "STALENESS.md", "Old, long and differently sized updates")
    };
    Picture {
        name: "away",
        title: "One of eight learners was away",
        x: ("steps for which it was away", Scale::Log),
        y: ("held-out loss above nobody away, %", Scale::Linear),
        lines: vec![
            of("as by default", 0, "cap"),
            of("bound without cap", 1, "no rule"),
            of("neither", 2, "no bound"),
        ],
    }
}

fn kills() -> Picture {
    let of = |name, colour, y, i| Line {
        mark: Mark::Bar,
        rows: vec![("", "until")],
        y,
        numbers: i..i + 1,
        ..line(name, colour, "CRASHES.md", "With a tape")
    };
    let idle = "200 kills, idle cores, --seed 1";
    let (busy, seven) = ("200 kills, --seed 1", "40 kills, --seed 7");
    Picture {
        name: "kills",
        title: "The syncer is killed again and again",
        x: ("", Scale::Names(Vec::new())),
        y: ("seconds after a kill", Scale::Linear),
        lines: vec![
            of("idle: median", 0, idle, 0),
            of("idle: longest", 1, idle, 1),
            of("busy: median", 2, seven, 0),
            of("busy: longest", 3, seven, 1),
            of("unmended: median", 4, busy, 0),
            of("unmended: longest", 5, busy, 1),
        ],
    }
}

fn crowd() -> Picture {
    let of = |name, colour, y| Line { x: "learners", y, ..line(name, colour, "SCALE.md", "On idle cores") };
    Picture {
        name: "crowd",
        title: "Answers of one syncer beside a crowd",
        x: ("light learners", Scale::Log),
        y: ("milliseconds", Scale::Log),
        lines: vec![
            of("control, median", 0, "control, ms, median"),
            of("control, 99 of 100", 1, "99 of 100"),
        ],
    }
}

fn tuning(name: &'static str, title: &'static str, x: &'static str) -> Picture {
    let of = |colour, y| Line {
        x,
        y,
        numbers: 1..2,
        ..line(y, colour, "TUNING.md", "Fine-tuning beside PyTorch")
    };
    Picture {
        name,
        title,
        x: ("learning rate", Scale::Log),
        y: ("loss told of, nats per byte", Scale::Linear),
        lines: vec![of(0, "four learners"), of(1, "PyTorch")],
    }
}

/// Creates a line over attacks, for runs with two hostile learners of ten.
fn hostile(name: &'static str, mark: Mark, y: &'static str, count: usize) -> Line {
    let line = line(name, 0, "POISON.md", "All that a syncer does by default");
    Line { mark, x: "20 % hostile", y, numbers: 0..count, ..line }
}

fn poison() -> Picture {
    Picture {
        name: "poison-default",
        title: "Two hostile learners of ten, all that a syncer does by default",
        x: ("", Scale::Names(Vec::new())),
        y: ("loss above honest ones alone, %", Scale::Linear),
        lines: vec![
            hostile("mean", Mark::Dot, "loss above clean, %", 1),
            hostile("each seed", Mark::Hollow, "each seed", 5),
        ],
    }
}

fn noticed() -> Picture {
    Picture {
        name: "poison-noticed",
        title: "When two hostile learners of ten were noticed",
        x: ("no mark: never", Scale::Names(Vec::new())),
        y: ("rounds, of about 420", Scale::Linear),
        lines: vec![hostile("mean", Mark::Dot, "noticed after rounds, of about 420", 1)],
    }
}
