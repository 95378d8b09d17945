# Turns a text file into a C array: cmake -DIN=math.h -DOUT=math.h.inc -DNAME=prelude_math -P embed.cmake
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE "${OUT}" "static const char ${NAME}[] = {\n${bytes}0};\n")
