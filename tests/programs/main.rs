//! Tests with real programs, each alone on the machine: see `archipelago_tests::processes::whole_machine`.

mod backup;
mod end_to_end;
mod invites;
mod kills;
mod llama_fixture;
mod lora;
mod own_model;
mod real_disk;
mod several;
mod silent_sockets;
mod tls;
mod tune;
