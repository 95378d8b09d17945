/* run_main.c - `trainc run` by itself, as a program that the allocation counter can be preloaded
 * into. */
#include "run.h"
int main(int argc, char **argv) { return trainc_run_main(argc, argv); }
