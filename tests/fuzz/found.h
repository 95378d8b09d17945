/* found.h - the smallest graphs by which random ones found faults of generated code. */
#ifndef TRAINC_FUZZ_FOUND_H
#define TRAINC_FUZZ_FOUND_H

enum { N_FOUND = 6 };
static const char *const fuzz_found[N_FOUND] = {
    /* a tile of no rows, columns and terms: its launch had no blocks, its kernel divided by 0 */
    "graph found\ninput x : f32[2,0,0]\n%1 = input : f32[2,0,0] name=x\n%2 = dot %1 %1 ta=0 tb=0\n"
    "entry eval\noutput y = %2\n",
    /* rows of no extent beside the reduction */
    "graph found\ninput x : f32[3,0]\n%1 = input : f32[3,0] name=x\n%2 = rmax %1 axes=[0]\nentry eval\noutput y = %2\n",
    /* no update is the last one */
    "graph found\ninput x : f32[3,2]\ninput i : i64[0,2]\ninput u : f32[0,2]\n%1 = input : f32[3,2] name=x\n"
    "%2 = input : i64[0,2] name=i\n%3 = input : f32[0,2] name=u\n%4 = put %1 %2 %3 axis=0 mode=1\nentry eval\noutput y = %4\n",
    /* a quotient of what may be negative by a power of two, and 1: a shift binds less than the sum */
    "graph found\ninput y : f32[1,1,3]\ninput w : f32[1,2,2]\n%1 = input : f32[1,1,3] name=y\n%2 = input : f32[1,2,2] name=w\n"
    "%3 = conv_dx %1 %2 : f32[1,2,5] low=[2] high=[0] strides=[2] dilations=[1] groups=1\nentry eval\noutput y = %3\n",
    "graph found\ninput x : f32[1,3,2]\n%1 = input : f32[1,3,2] name=x\n"
    "%2 = fold %1 : f32[1,5] low=[2] high=[0] kernel=[2] strides=[2] dilations=[1]\nentry eval\noutput y = %2\n",
    /* numbers that the type of an iota does not hold wrap */
    "graph found\n%1 = iota : u2[8] axis=0\n%2 = cast %1 : f32[8]\nentry eval\noutput y = %2\noutput z = %1\n",
};
#endif
