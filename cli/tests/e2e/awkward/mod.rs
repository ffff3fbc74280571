//! Programs that do what few programs do, under `fastpath run` and `fastpath attach`: they get what they would get without it.

mod askers;
mod calls;
mod execs;
mod limits;
mod requests;
