//! Programs that do what few programs do, under `fastpath run` and `fastpath attach`: their results are the same as
//! without fastpath.

mod askers;
mod calls;
mod execs;
mod limits;
mod moved;
mod requests;
