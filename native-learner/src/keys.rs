//! The verb `identity`: shows the key, or moves it to another machine.

use std::io;

use archipelago::run::identity::{of_text, read, to_text, write};
use archipelago::run::{Key, Signer};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::key_args::{IdentityArgs, KeyOrder};
use crate::show::print;

pub(crate) fn identity(args: &IdentityArgs) -> Result<(), Failure> {
    let path = args.path()?;
    let failed = |error| Failure::new(Exit::Identity, error);
    let shown = |key: &Key| key.identity().fingerprint().to_string();
    let (key, text) = match args.order {
        KeyOrder::Show => {
            let key = read(&path).map_err(failed)?;
            let text = format!("{}\nin {}", shown(&key), path.display());
            (key, text)
        }
        KeyOrder::Export => {
            let key = read(&path).map_err(failed)?;
            let text = to_text(&key);
            (key, text)
        }
        KeyOrder::Import => {
            let mut line = String::new();
            io::stdin().read_line(&mut line).map_err(|error| Failure::new(Exit::Identity, error))?;
            let key = of_text(&line).map_err(failed)?;
            write(&path, &key, args.force).map_err(failed)?;
            let text = format!("stored {} in {}", shown(&key), path.display());
            (key, text)
        }
    };
    if !args.json {
        print(&text);
        return Ok(());
    }
    let mut told = json!({ "fingerprint": shown(&key), "file": path });
    if args.order == KeyOrder::Export {
        told["key"] = text.into();
    }
    print(&told);
    Ok(())
}
